// MATMUL of integers: parameters and operands (docs/kernel-interface.md).

layout(push_constant) uniform Params {
    uint count;
    uint tiles;
    uint h;
    uint c;
    uint w;
    uint row;
    uint c_first;
    uint c_last;
};

layout(set = 0, binding = 0) readonly buffer X { uint x_words[]; };
layout(set = 0, binding = 1) readonly buffer B { uint b_words[]; };
layout(set = 0, binding = 2) readonly buffer Zeros { int zeros[]; };
layout(set = 0, binding = 3) buffer Y { int y[]; };
