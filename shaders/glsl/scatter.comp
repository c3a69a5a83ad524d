// y[n, k, c] = input[n, rows[n, k] - 1, c], or x[n, k, c] where rows is 0; raw lanes.
#version 450
#extension GL_GOOGLE_include_directive : require

#include "storage.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint TYPE = 7u;

layout(set = 0, binding = 0) readonly buffer X { uint x_words[]; };
layout(set = 0, binding = 1) readonly buffer Rows { uint rows[]; };
layout(set = 0, binding = 2) readonly buffer Input { uint input_words[]; };
layout(set = 0, binding = 3) buffer Y { uint y_words[]; };

layout(push_constant) uniform Params {
    uint count;
    uint k;
    uint w;
    uint c;
};

#include "linear.glsl"

uint element(uint i) {
    uint to = i / c;
    uint row = rows[to];
    if (row == 0u) return lane_bits(x_words[i / lanes_of(TYPE)], TYPE, i);
    uint at = (to / k * w + row - 1u) * c + (i - to * c);
    return lane_bits(input_words[at / lanes_of(TYPE)], TYPE, at);
}

void main() {
    uint i = invocation();
    uint lanes = lanes_of(TYPE);
    if (i > (count - 1u) / lanes) return;
    if (lanes == 1u) {
        y_words[i] = element(i);
        return;
    }
    uint present = min(lanes, count - i * lanes);
    uint result = present < lanes ? y_words[i] & (0xFFFFFFFFu << (present * (32u / lanes))) : 0u;
    for (uint j = 0u; j < present; j++) result |= place(TYPE, element(i * lanes + j), j);
    y_words[i] = result;
}
