// TOSA TABLE: INT8 looked up in 256 entries, INT16 interpolated between 513 (docs/kernel-interface.md).
#version 450
#extension GL_GOOGLE_include_directive : require

#include "storage.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint TYPE = 3u;

layout(set = 0, binding = 0) readonly buffer X { uint x_words[]; };
layout(set = 0, binding = 1) readonly buffer Table { uint table_words[]; };
layout(set = 0, binding = 2) buffer Y { uint y_words[]; };

layout(push_constant) uniform Params {
    uint count;
};

#include "linear.glsl"

uint entry(uint at) { return lane_bits(table_words[at / lanes_of(TYPE)], TYPE, at); }

void main() {
    uint i = invocation();
    if (TYPE == INT16) {
        if (i >= count) return;
        // An entry for each 128 values; the last seven bits lie between two entries.
        uint place_of_x = lane_bits(x_words[i / 2u], INT16, i) ^ 0x8000u;
        uint at = place_of_x >> 7;
        int base = widen_int(INT16, entry(at));
        int slope = widen_int(INT16, entry(at + 1u)) - base;
        y_words[i] = uint((base << 7) + slope * int(place_of_x & 0x7Fu));
        return;
    }
    if (i > (count - 1u) / 4u) return;
    uint present = min(4u, count - i * 4u);
    uint result = present < 4u ? y_words[i] & (0xFFFFFFFFu << (present * 8u)) : 0u;
    uint places = x_words[i] ^ 0x80808080u;
    for (uint k = 0u; k < present; k++) {
        result |= place(INT8, entry(lane_bits(places, INT8, k)), k);
    }
    y_words[i] = result;
}
