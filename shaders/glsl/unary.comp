// y[i] = OP(x[i]) for the elementwise operators of one operand (docs/kernel-interface.md).
#version 450
#extension GL_GOOGLE_include_directive : require

#include "float_controls.glsl"
#include "storage.glsl"
#include "math.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint OP = 0u;
layout(constant_id = 2) const uint TYPE = 7u;
layout(constant_id = 3) const uint MODE = 0u;

layout(set = 0, binding = 0) readonly buffer X { uint x_words[]; };
layout(set = 0, binding = 1) buffer Y { uint y_words[]; };

layout(push_constant) uniform Params {
    uint count;
    uint lo;
    uint hi;
};

#include "linear.glsl"

const uint CLAMP = 11u;
const uint ERF = 12u;
const uint SIGMOID = 13u;
const uint TANH = 14u;
const uint ABS = 32u;
const uint BITWISE_NOT = 33u;
const uint CEIL = 34u;
const uint CLZ = 35u;
const uint COS = 36u;
const uint EXP = 37u;
const uint FLOOR = 38u;
const uint LOG = 39u;
const uint LOGICAL_NOT = 40u;
const uint NEGATE = 41u;
const uint RECIPROCAL = 42u;
const uint RSQRT = 43u;
const uint SIN = 44u;

const uint IGNORE_NAN = 2u;

// Orders floats as integers: comparing floats may flush subnormals. Both zeros are 0.
int order(uint bits) {
    int magnitude = int(bits & 0x7FFFFFFFu);
    return bits >= 0x80000000u ? -magnitude : magnitude;
}

uint clamped(uint bits) {
    // IGNORE: max(NaN, lo) is lo.
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return MODE == IGNORE_NAN ? lo : 0x7FC00000u;
    uint low = run_time(lo);
    uint high = run_time(hi);
    if (order(bits) < order(low)) return low;
    if (order(bits) > order(high)) return high;
    return bits;
}

float evaluate(float v) {
    if (OP == CLAMP) return uintBitsToFloat(clamped(floatBitsToUint(v)));
    if (OP == ERF) return strict_erf(v);
    if (OP == SIGMOID) return strict_sigmoid(v);
    if (OP == TANH) return strict_tanh(v);
    if (OP == CEIL) return strict_ceil(v);
    if (OP == COS) return strict_cos(v);
    if (OP == EXP) return strict_exp(v);
    if (OP == FLOOR) return strict_floor(v);
    if (OP == LOG) return strict_log(v);
    if (OP == RECIPROCAL) return strict_reciprocal(v);
    if (OP == RSQRT) return strict_rsqrt(v);
    return strict_sin(v);
}

uint float_lane(uint lane) {
    // Sign operations work on the lane itself, so every NaN keeps its payload.
    uint sign = (lane_mask(TYPE) >> 1) + 1u;
    if (OP == ABS) return lane & ~sign;
    if (OP == NEGATE) return lane ^ sign;
    return narrow(TYPE, evaluate(widen(TYPE, lane)));
}

// zero_out - (v - zero_in), saturated. Only INT8 has zero points, so only INT32 can overflow.
int saturated_negative(int v) {
    if (TYPE == INT32) return v == int(0x80000000u) ? 0x7FFFFFFF : -v;
    int limit = int(lane_mask(TYPE) >> 1);
    return clamp(int(hi) - (v - int(lo)), -limit - 1, limit);
}

uint integer_lane(uint lane) {
    int v = widen_int(TYPE, lane);
    int r = v;
    if (OP == LOGICAL_NOT) r = 1 - v;
    if (OP == BITWISE_NOT) r = ~v;
    if (OP == ABS) r = v < 0 ? -v : v;
    if (OP == CLAMP) r = clamp(v, int(lo), int(hi));
    if (OP == CLZ) r = lane == 0u ? 32 : 31 - findMSB(lane);
    if (OP == NEGATE) r = saturated_negative(v);
    return narrow_int(TYPE, r);
}

void main() {
    uint lanes = lanes_of(TYPE);
    uint i = invocation();
    if (i >= count / lanes + (count % lanes != 0u ? 1u : 0u)) return;
    uint first = i * lanes;
    uint present = min(lanes, count - first);
    uint word = x_words[i];
    // Lanes behind the tensor's end belong to somebody else.
    uint result = present < lanes ? y_words[i] & (0xFFFFFFFFu << (present * (32u / lanes))) : 0u;
    for (uint k = 0u; k < present; k++) {
        uint lane = lane_bits(word, TYPE, k);
        result |= place(TYPE, is_float(TYPE) ? float_lane(lane) : integer_lane(lane), k);
    }
    y_words[i] = result;
}
