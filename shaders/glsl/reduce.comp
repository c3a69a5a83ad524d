// REDUCE_* and ARGMAX over the middle of (outer, axis, inner), in ascending order
// (docs/kernel-interface.md). Floats are compared as integers: a float comparison may flush
// subnormals. The middle may be dealt out to several dispatches, [first, last) each: all but the
// first start from what is in y.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "float_controls.glsl"
#include "storage.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint OP = 54u;
layout(constant_id = 2) const uint TYPE = 7u;
layout(constant_id = 3) const uint Y_TYPE = 7u;
layout(constant_id = 4) const uint MODE = 0u;

layout(set = 0, binding = 0) readonly buffer X { uint x_words[]; };
layout(set = 0, binding = 1) buffer Y { uint y_words[]; };

layout(push_constant) uniform Params {
    uint count;
    uint axis;
    uint inner;
    uint first;
    uint last;
};

#include "linear.glsl"

const uint ARGMAX = 1u;
const uint REDUCE_ALL = 49u;
const uint REDUCE_ANY = 50u;
const uint REDUCE_MAX = 51u;
const uint REDUCE_MIN = 52u;
const uint REDUCE_PRODUCT = 53u;
const uint REDUCE_SUM = 54u;
const uint PROPAGATE = 1u;
const uint CANONICAL_NAN = 0x7FC00000u;

uint x_lane(uint at) { return lane_bits(x_words[at / lanes_of(TYPE)], TYPE, at); }

bool nan_bits(uint bits) { return (bits & 0x7FFFFFFFu) > 0x7F800000u; }

// An integer that sorts as the float; both zeros are 0.
int float_order(uint bits) {
    int magnitude = int(bits & 0x7FFFFFFFu);
    return bits >= 0x80000000u ? -magnitude : magnitude;
}

int order_of(uint lane) {
    return is_float(TYPE) ? float_order(floatBitsToUint(widen(TYPE, lane))) : widen_int(TYPE, lane);
}

bool nan_lane(uint lane) { return is_float(TYPE) && nan_bits(floatBitsToUint(widen(TYPE, lane))); }

// Element i of y, which has TYPE but for ARGMAX's indices.
uint y_lane(uint i) {
    return OP == ARGMAX ? y_words[i] : lane_bits(y_words[i / lanes_of(TYPE)], TYPE, i);
}

uint argmax(uint i, uint base, uint end) {
    uint best = 0u;
    int highest = 0;
    bool found = false;
    if (first != 0u) {
        best = y_lane(i);
        uint lane = x_lane(base + best * inner);
        found = !nan_lane(lane);
        if (!found && MODE == PROPAGATE) return best;
        highest = order_of(lane);
    }
    uint at = base + first * inner;
    for (uint k = first; k < end; k++, at += inner) {
        uint lane = x_lane(at);
        if (nan_lane(lane)) {
            if (MODE == PROPAGATE) return k;
            continue;
        }
        int order = order_of(lane);
        if (!found || order > highest) {
            found = true;
            highest = order;
            best = k;
        }
    }
    return best;
}

// Passed-over NaNs do not count, but NaN it is when there is nothing else.
uint extreme_float(uint i, uint at, uint end) {
    uint result = CANONICAL_NAN;
    int limit = 0;
    if (first != 0u) {
        result = floatBitsToUint(widen(TYPE, y_lane(i)));
        if (nan_bits(result) && MODE == PROPAGATE) return y_lane(i);
        limit = float_order(result);
    }
    for (uint k = first; k < end; k++, at += inner) {
        uint bits = floatBitsToUint(widen(TYPE, x_lane(at)));
        if (nan_bits(bits)) {
            if (MODE == PROPAGATE) return narrow(TYPE, uintBitsToFloat(CANONICAL_NAN));
            continue;
        }
        int order = float_order(bits);
        if (nan_bits(result) || (OP == REDUCE_MAX ? order > limit : order <= limit)) {
            limit = order;
            result = bits;
        }
    }
    return narrow(TYPE, uintBitsToFloat(result));
}

uint extreme_int(uint i, uint at, uint end) {
    int result = widen_int(TYPE, first != 0u ? y_lane(i) : x_lane(at));
    for (uint k = first; k < end; k++, at += inner) {
        int v = widen_int(TYPE, x_lane(at));
        result = OP == REDUCE_MAX ? max(result, v) : min(result, v);
    }
    return narrow_int(TYPE, result);
}

uint total_float(uint i, uint at, uint end) {
    // +0 or 1, known at run time only: a compiler may drop the addition of a known zero.
    precise float total = uintBitsToFloat(run_time(OP == REDUCE_SUM ? 0u : 0x3F800000u));
    if (first != 0u) total = widen(TYPE, y_lane(i));
    for (uint k = first; k < end; k++, at += inner) {
        float v = widen(TYPE, x_lane(at));
        if (OP == REDUCE_SUM) {
            total = total + v;
        } else {
            total = total * v;
        }
    }
    uint bits = floatBitsToUint(total);
    return narrow(TYPE, uintBitsToFloat(nan_bits(bits) ? CANONICAL_NAN : bits));
}

uint total_int(uint i, uint at, uint end) {
    uint total = first != 0u ? y_lane(i) : 0u;
    for (uint k = first; k < end; k++, at += inner) total += x_lane(at);
    return total;
}

uint truth(uint i, uint at, uint end) {
    bool decisive = OP == REDUCE_ANY;
    if (first != 0u && (y_lane(i) != 0u) == decisive) return decisive ? 1u : 0u;
    for (uint k = first; k < end; k++, at += inner) {
        if ((x_lane(at) != 0u) == decisive) return decisive ? 1u : 0u;
    }
    return decisive ? 0u : 1u;
}

uint element(uint i) {
    uint end = run_time(last);
    uint outer = i / inner;
    uint base = outer * (axis - 1u) * inner + i;
    uint at = base + first * inner;
    if (OP == ARGMAX) return argmax(i, base, end);
    if (OP == REDUCE_ALL || OP == REDUCE_ANY) return truth(i, at, end);
    if (OP == REDUCE_MAX || OP == REDUCE_MIN) {
        return is_float(TYPE) ? extreme_float(i, at, end) : extreme_int(i, at, end);
    }
    return is_float(TYPE) ? total_float(i, at, end) : total_int(i, at, end);
}

void main() {
    uint i = invocation();
    uint lanes = lanes_of(Y_TYPE);
    if (i > (count - 1u) / lanes) return;
    if (lanes == 1u) {
        y_words[i] = element(i);
        return;
    }
    uint present = min(lanes, count - i * lanes);
    uint result = present < lanes ? y_words[i] & (0xFFFFFFFFu << (present * (32u / lanes))) : 0u;
    for (uint k = 0u; k < present; k++) result |= place(Y_TYPE, element(i * lanes + k), k);
    y_words[i] = result;
}
