// y[n, w, c] = x[n, indices[n, w], c], raw lanes; 0 where the index is outside x.
#version 450
#extension GL_GOOGLE_include_directive : require

#include "storage.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint TYPE = 7u;

layout(set = 0, binding = 0) readonly buffer X { uint x_words[]; };
layout(set = 0, binding = 1) readonly buffer Indices { uint indices_words[]; };
layout(set = 0, binding = 2) buffer Y { uint y_words[]; };

layout(push_constant) uniform Params {
    uint count;
    uint n;
    uint k;
    uint w;
    uint c;
};

#include "linear.glsl"

uint element(uint i) {
    uint place_in_w = i / c;
    uint batch = place_in_w / w;
    uint index = indices_words[place_in_w];
    // A negative index is a large number here.
    if (index >= k || batch >= n) return 0u;
    uint at = (batch * k + index) * c + (i - place_in_w * c);
    uint lane = lane_bits(x_words[at / lanes_of(TYPE)], TYPE, at);
    return TYPE == BOOL ? min(lane, 1u) : lane;
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
