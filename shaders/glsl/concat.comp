// One input's part of a concatenation (docs/kernel-interface.md): y is (outer, row), the input's
// part of each row is [begin, begin + length).
#version 450
#extension GL_GOOGLE_include_directive : require

#include "storage.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint TYPE = 7u;

layout(set = 0, binding = 0) readonly buffer X { uint x_words[]; };
layout(set = 0, binding = 1) buffer Y { uint y_words[]; };

layout(push_constant) uniform Params {
    uint count;
    uint row;
    uint begin;
    uint length;
};

#include "linear.glsl"

uint raw_lane(uint at) {
    uint lane = lane_bits(x_words[at / lanes_of(TYPE)], TYPE, at);
    return TYPE == BOOL ? min(lane, 1u) : lane;
}

void main() {
    uint i = invocation();
    uint lanes = lanes_of(TYPE);
    if (i > (count - 1u) / lanes) return;
    if (lanes == 1u) {
        uint outer = i / length;
        y_words[outer * (row - length) + begin + i] = x_words[i];
        return;
    }
    uint first = i * lanes;
    uint present = min(lanes, count - first);
    uint outer = first / row;
    uint column = first - outer * row;
    uint mine = 0u;
    uint lanes_of_x = 0u;
    for (uint k = 0u; k < present; k++) {
        uint within = column - begin;
        if (column >= begin && within < length) {
            mine |= place(TYPE, lane_mask(TYPE), k);
            lanes_of_x |= place(TYPE, raw_lane(outer * length + within), k);
        }
        column++;
        if (column == row) {
            column = 0u;
            outer++;
        }
    }
    if (mine == 0u) return;
    uint kept = mine == 0xFFFFFFFFu ? 0u : y_words[i] & ~mine;
    y_words[i] = kept | lanes_of_x;
}
