// y = MUL of INT32 with a shift that is known at run time only: the 64-bit product, halves upwards.
#version 450
#extension GL_GOOGLE_include_directive : require

layout(local_size_x_id = 0) in;

layout(set = 0, binding = 0) readonly buffer A { int a[]; };
layout(set = 0, binding = 1) readonly buffer B { int b[]; };
layout(set = 0, binding = 2) readonly buffer Shift { uint shift_words[]; };
layout(set = 0, binding = 3) writeonly buffer Y { int y[]; };

layout(push_constant) uniform Params { uint count; };

#include "linear.glsl"
#include "words.glsl"

void main() {
    uint i = invocation();
    if (i >= count) return;
    // An INT8, the first one of its word; larger shifts than 63 are not allowed.
    uint shift = shift_words[0] & 63u;
    uvec2 total = wide_product(a[i], b[i]);
    if (shift != 0u) total = wide_shifted(wide_sum(total, wide_power(shift - 1u)), shift);
    y[i] = int(total.x);
}
