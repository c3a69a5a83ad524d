// y[i] = x[i] converted from X_TYPE to Y_TYPE (TOSA CAST, docs/kernel-interface.md).
#version 450
#extension GL_GOOGLE_include_directive : require

#include "storage.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint X_TYPE = 7u;
layout(constant_id = 2) const uint Y_TYPE = 7u;

layout(set = 0, binding = 0) readonly buffer X { uint x_words[]; };
layout(set = 0, binding = 1) buffer Y { uint y_words[]; };

layout(push_constant) uniform Params { uint count; };

#include "linear.glsl"

// value / 2^shift, to nearest even or with the lost bits or-ed into the last one.
uint dropped(uint value, uint shift, bool sticky) {
    uint kept = value >> shift;
    uint rest = value - (kept << shift);
    if (rest == 0u) return kept;
    if (sticky) return kept | 1u;
    uint tie = 1u << (shift - 1u);
    return (rest > tie || (rest == tie && (kept & 1u) != 0u)) ? kept + 1u : kept;
}

// Nearest even, saturated to Y_TYPE; NaN gives 0.
int float_to_int(uint bits) {
    uint magnitude = bits & 0x7FFFFFFFu;
    uint field = magnitude >> 23;
    bool negative = bits >= 0x80000000u;
    int limit = int(lane_mask(Y_TYPE) >> 1);
    if (magnitude > 0x7F800000u || field < 126u) return 0;
    if (field >= 158u) return negative ? -limit - 1 : limit;
    uint significand = (magnitude & 0x007FFFFFu) | 0x00800000u;
    uint whole = field < 150u ? dropped(significand, 150u - field, false) : significand << (field - 150u);
    return clamp(negative ? -int(whole) : int(whole), -limit - 1, limit);
}

// FP32 takes the nearest even; for narrower types the sticky bit keeps the second rounding right.
float int_to_float(int v) {
    if (v == 0) return 0.0;
    uint sign = uint(v) & 0x80000000u;
    uint magnitude = sign != 0u ? 0u - uint(v) : uint(v);
    int top = findMSB(magnitude);
    uint significand = top <= 23 ? magnitude << uint(23 - top) : dropped(magnitude, uint(top - 23), Y_TYPE != FP32);
    return uintBitsToFloat(sign | ((uint(top + 126) << 23) + significand));
}

uint converted(uint lane) {
    if (!is_float(X_TYPE)) {
        int v = widen_int(X_TYPE, lane);
        return is_float(Y_TYPE) ? narrow(Y_TYPE, int_to_float(v)) : narrow_int(Y_TYPE, v);
    }
    if (X_TYPE == Y_TYPE) return lane;
    float v = widen(X_TYPE, lane);
    if (is_float(Y_TYPE)) return narrow(Y_TYPE, v);
    uint bits = floatBitsToUint(v);
    if (Y_TYPE == BOOL) return (bits & 0x7FFFFFFFu) != 0u ? 1u : 0u;
    return narrow_int(Y_TYPE, float_to_int(bits));
}

void main() {
    uint lanes = lanes_of(Y_TYPE);
    uint i = invocation();
    if (i >= count / lanes + (count % lanes != 0u ? 1u : 0u)) return;
    uint first = i * lanes;
    uint present = min(lanes, count - first);
    // Lanes behind the tensor's end belong to somebody else.
    uint result = present < lanes ? y_words[i] & (0xFFFFFFFFu << (present * (32u / lanes))) : 0u;
    for (uint k = 0u; k < present; k++) {
        uint element = first + k;
        uint lane = lane_bits(x_words[element / lanes_of(X_TYPE)], X_TYPE, element);
        result |= place(Y_TYPE, converted(lane), k);
    }
    y_words[i] = result;
}
