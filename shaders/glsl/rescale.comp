// TOSA RESCALE: integers times multiplier / 2^shift, between zero points (docs/kernel-interface.md).
// `scale` holds the two zero points, then the multipliers, then the shifts.
#version 450
#extension GL_GOOGLE_include_directive : require

#include "storage.glsl"
#include "words.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint X_TYPE = 5u;
layout(constant_id = 2) const uint Y_TYPE = 3u;
layout(constant_id = 3) const uint X_UNSIGNED = 0u;
layout(constant_id = 4) const uint Y_UNSIGNED = 0u;
layout(constant_id = 5) const uint TWICE = 0u;

layout(set = 0, binding = 0) readonly buffer X { uint x_words[]; };
layout(set = 0, binding = 1) readonly buffer Scale { uint scale_words[]; };
layout(set = 0, binding = 2) buffer Y { uint y_words[]; };

layout(push_constant) uniform Params {
    uint count;
    uint channels;
};

#include "linear.glsl"

const uint HEADER = 2u;

int widened_as(uint dtype, uint is_unsigned, uint lane) {
    lane &= lane_mask(dtype);
    return is_unsigned != 0u ? int(lane) : widen_int(dtype, lane);
}

// `lane` is element `element` of x, but for INT48.
uint scaled(uint element, uint lane, uint channel, int x_zero, int y_zero) {
    int multiplier = int(scale_words[HEADER + channel]);
    uint shift = scale_words[HEADER + channels + channel];
    int v;
    if (X_TYPE == INT48) {
        // high * 2^32 + low has 48 bits and the multiplier 16, so that the product fits.
        uint low = x_words[2u * element];
        int high = int(x_words[2u * element + 1u]);
        uvec2 product;
        umulExtended(low, uint(multiplier), product.y, product.x);
        product.y += uint(high * multiplier) - (multiplier < 0 ? low : 0u);
        v = wide_scaled(product, shift, false);
    } else {
        int value = widened_as(X_TYPE, X_UNSIGNED, lane) - x_zero;
        v = wide_scaled(wide_product(value, multiplier), shift, TWICE != 0u);
    }
    if (Y_TYPE == INT32) return uint(v);
    int span = int(lane_mask(Y_TYPE));
    int least = Y_UNSIGNED != 0u ? 0 : -(span >> 1) - 1;
    // The zero point is added within what the sum may be, so that it cannot overflow.
    return uint(clamp(v, least - y_zero, least + span - y_zero) + y_zero) & lane_mask(Y_TYPE);
}

void main() {
    uint i = invocation();
    uint lanes = lanes_of(Y_TYPE);
    if (i > (count - 1u) / lanes) return;
    int x_zero = X_TYPE == INT48 ? 0 : widened_as(X_TYPE, X_UNSIGNED, scale_words[0]);
    int y_zero = widened_as(Y_TYPE, Y_UNSIGNED, scale_words[1]);
    uint first = i * lanes;
    uint channel = first % channels;
    if (lanes == 1u) {
        uint lane = X_TYPE == INT48 ? 0u : lane_bits(x_words[i / lanes_of(X_TYPE)], X_TYPE, i);
        y_words[i] = scaled(i, lane, channel, x_zero, y_zero);
        return;
    }
    uint present = min(lanes, count - first);
    // Lanes behind the tensor's end belong to somebody else.
    uint result = present < lanes ? y_words[i] & (0xFFFFFFFFu << (present * (32u / lanes))) : 0u;
    // Where it lies under the word of y, the word of x is loaded once.
    bool under = lanes_of(X_TYPE) == lanes;
    uint word = under ? x_words[i] : 0u;
    for (uint k = 0u; k < present; k++) {
        if (!under && X_TYPE != INT48) word = x_words[(first + k) / lanes_of(X_TYPE)];
        uint lane = lane_bits(word, X_TYPE, first + k);
        result |= place(Y_TYPE, scaled(first + k, lane, channel, x_zero, y_zero), k);
        channel = channel + 1u == channels ? 0u : channel + 1u;
    }
    y_words[i] = result;
}
