// PAD and TILE (docs/kernel-interface.md): y (dims d) from x (dims e, element strides s), raw lanes.
#version 450
#extension GL_GOOGLE_include_directive : require

#include "storage.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint OP = 56u;
layout(constant_id = 2) const uint TYPE = 7u;

layout(set = 0, binding = 0) readonly buffer X { uint x_words[]; };
layout(set = 0, binding = 1) buffer Y { uint y_words[]; };

layout(push_constant) uniform Params {
    uint count;
    uint d0;
    uint d1;
    uint d2;
    uint d3;
    uint d4;
    uint d5;
    uint e0;
    uint e1;
    uint e2;
    uint e3;
    uint e4;
    uint e5;
    uint s0;
    uint s1;
    uint s2;
    uint s3;
    uint s4;
    uint s5;
    uint p0;
    uint p1;
    uint p2;
    uint p3;
    uint p4;
    uint p5;
    uint fill;
};

#include "linear.glsl"

const uint TILE = 60u;

// Takes the innermost coordinate off `rest` and adds its way in x; false in the padding.
bool peel(inout uint rest, inout uint at, uint d, uint e, uint s, uint p) {
    if (run_time(d) == 1u) return true;
    uint outer = rest / d;
    uint c = rest - outer * d;
    rest = outer;
    if (OP == TILE) {
        at += (c % e) * s;
        return true;
    }
    // In front of x this wraps round to a large number.
    c -= p;
    at += c * s;
    return c < e;
}

uint raw_lane(uint at) {
    uint lane = lane_bits(x_words[at / lanes_of(TYPE)], TYPE, at);
    return TYPE == BOOL ? min(lane, 1u) : lane;
}

uint element(uint i) {
    uint at = 0u;
    bool inside = peel(i, at, d5, e5, s5, p5);
    inside = peel(i, at, d4, e4, s4, p4) && inside;
    inside = peel(i, at, d3, e3, s3, p3) && inside;
    inside = peel(i, at, d2, e2, s2, p2) && inside;
    inside = peel(i, at, d1, e1, s1, p1) && inside;
    inside = peel(i, at, d0, e0, s0, p0) && inside;
    return inside ? raw_lane(at) : fill;
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
    for (uint k = 0u; k < present; k++) result |= place(TYPE, element(i * lanes + k), k);
    y_words[i] = result;
}
