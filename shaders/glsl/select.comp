// y = c ? a : b elementwise on raw lanes, with broadcasting by strides (docs/kernel-interface.md).
#version 450
#extension GL_GOOGLE_include_directive : require

#include "storage.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint TYPE = 7u;
layout(constant_id = 2) const uint BROADCAST = 0u;

layout(set = 0, binding = 0) readonly buffer C { uint c_words[]; };
layout(set = 0, binding = 1) readonly buffer A { uint a_words[]; };
layout(set = 0, binding = 2) readonly buffer B { uint b_words[]; };
layout(set = 0, binding = 3) buffer Y { uint y_words[]; };

layout(push_constant) uniform Params {
    uint count;
    uint d0;
    uint d1;
    uint d2;
    uint d3;
    uint d4;
    uint d5;
    uint c0;
    uint c1;
    uint c2;
    uint c3;
    uint c4;
    uint c5;
    uint a0;
    uint a1;
    uint a2;
    uint a3;
    uint a4;
    uint a5;
    uint b0;
    uint b1;
    uint b2;
    uint b3;
    uint b4;
    uint b5;
};

#include "linear.glsl"

// Takes the innermost coordinate of dimension `d` off `rest`.
uint peel(inout uint rest, uint d) {
    uint c = rest % d;
    rest /= d;
    return c;
}

// The elements of c, a and b that element `e` of y reads.
uvec3 sources(uint e) {
    if (BROADCAST == 0u) return uvec3(e);
    if (BROADCAST == 1u) return e * uvec3(c5, a5, b5);
    uvec3 at = peel(e, d5) * uvec3(c5, a5, b5);
    if (BROADCAST == 2u) return at + e * uvec3(c4, a4, b4);
    at += peel(e, d4) * uvec3(c4, a4, b4);
    if (BROADCAST == 3u) return at + e * uvec3(c3, a3, b3);
    at += peel(e, d3) * uvec3(c3, a3, b3);
    if (BROADCAST == 4u) return at + e * uvec3(c2, a2, b2);
    at += peel(e, d2) * uvec3(c2, a2, b2);
    if (BROADCAST == 5u) return at + e * uvec3(c1, a1, b1);
    at += peel(e, d1) * uvec3(c1, a1, b1);
    return at + e * uvec3(c0, a0, b0);
}

uint selected(uint e) {
    uvec3 from = sources(e);
    uint lanes = lanes_of(TYPE);
    bool first = lane_bits(c_words[from.x / lanes_of(BOOL)], BOOL, from.x) != 0u;
    uint a = lane_bits(a_words[from.y / lanes], TYPE, from.y);
    uint b = lane_bits(b_words[from.z / lanes], TYPE, from.z);
    uint lane = first ? a : b;
    return TYPE == BOOL ? min(lane, 1u) : lane;
}

void main() {
    uint lanes = lanes_of(TYPE);
    uint i = invocation();
    if (i >= count / lanes + (count % lanes != 0u ? 1u : 0u)) return;
    uint first = i * lanes;
    uint present = min(lanes, count - first);
    // Lanes behind the tensor's end belong to somebody else.
    uint result = present < lanes ? y_words[i] & (0xFFFFFFFFu << (present * (32u / lanes))) : 0u;
    for (uint k = 0u; k < present; k++) result |= place(TYPE, selected(first + k), k);
    y_words[i] = result;
}
