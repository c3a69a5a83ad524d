// y[i] = x[offset + sum of c_k * s_k], raw lanes (docs/kernel-interface.md). INT48 and SHAPE
// elements take two words, and each word an invocation.
#version 450
#extension GL_GOOGLE_include_directive : require

#include "storage.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint TYPE = 7u;

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
    uint s0;
    uint s1;
    uint s2;
    uint s3;
    uint s4;
    uint s5;
    uint offset;
};

#include "linear.glsl"

// Takes the innermost coordinate off `rest` and its way in x onto `at`.
void peel(inout uint rest, inout uint at, uint d, uint s) {
    uint outer = rest / d;
    at += (rest - outer * d) * s;
    rest = outer;
}

// Where element `e` of y lies in x. The dimensions in front are mostly 1: once nothing is left,
// all further coordinates are 0.
uint source_of(uint e) {
    uint at = offset;
    peel(e, at, d5, s5);
    if (e == 0u) return at;
    peel(e, at, d4, s4);
    if (e == 0u) return at;
    peel(e, at, d3, s3);
    if (e == 0u) return at;
    peel(e, at, d2, s2);
    if (e == 0u) return at;
    peel(e, at, d1, s1);
    return at + e * s0;
}

uint raw_lane(uint at) {
    uint lane = lane_bits(x_words[at / lanes_of(TYPE)], TYPE, at);
    return TYPE == BOOL ? min(lane, 1u) : lane;
}

void main() {
    uint i = invocation();
    if (TYPE == INT48 || TYPE == SHAPE) {
        if (i / 2u < count) y_words[i] = x_words[2u * source_of(i / 2u) + i % 2u];
        return;
    }
    uint lanes = lanes_of(TYPE);
    uint first = i * lanes;
    if (i > (count - 1u) / lanes) return;
    if (lanes == 1u) {
        y_words[i] = x_words[source_of(i)];
        return;
    }
    uint present = min(lanes, count - first);
    uint result = present < lanes ? y_words[i] & (0xFFFFFFFFu << (present * (32u / lanes))) : 0u;
    if (run_time(d5) % lanes == 0u) {
        // The word lies in one row.
        uint at = source_of(first);
        for (uint k = 0u; k < lanes; k++) result |= place(TYPE, raw_lane(at + k * s5), k);
    } else {
        for (uint k = 0u; k < present; k++) {
            result |= place(TYPE, raw_lane(source_of(first + k)), k);
        }
    }
    y_words[i] = result;
}
