// y = OP(a, b) elementwise, with broadcasting by strides (docs/kernel-interface.md).
#version 450
#extension GL_GOOGLE_include_directive : require

#include "float_controls.glsl"
#include "storage.glsl"
#include "math.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint OP = 15u;
layout(constant_id = 2) const uint TYPE = 7u;
layout(constant_id = 3) const uint Y_TYPE = 7u;
layout(constant_id = 4) const uint BROADCAST = 0u;
layout(constant_id = 5) const uint MODE = 0u;

layout(set = 0, binding = 0) readonly buffer A { uint a_words[]; };
layout(set = 0, binding = 1) readonly buffer B { uint b_words[]; };
layout(set = 0, binding = 2) buffer Y { uint y_words[]; };

layout(push_constant) uniform Params {
    uint count;
    uint d0;
    uint d1;
    uint d2;
    uint d3;
    uint d4;
    uint d5;
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
    uint shift;
};

#include "linear.glsl"

const uint ADD = 15u;
const uint ARITHMETIC_RIGHT_SHIFT = 16u;
const uint BITWISE_AND = 17u;
const uint BITWISE_OR = 18u;
const uint BITWISE_XOR = 19u;
const uint INTDIV = 20u;
const uint LOGICAL_AND = 21u;
const uint LOGICAL_LEFT_SHIFT = 22u;
const uint LOGICAL_RIGHT_SHIFT = 23u;
const uint LOGICAL_OR = 24u;
const uint LOGICAL_XOR = 25u;
const uint MAXIMUM = 26u;
const uint MINIMUM = 27u;
const uint MUL = 28u;
const uint POW = 29u;
const uint SUB = 30u;
const uint EQUAL = 46u;
const uint GREATER = 47u;
const uint GREATER_EQUAL = 48u;

const uint IGNORE_NAN = 2u;

// Orders floats as integers: comparing floats may flush subnormals. Both zeros are 0.
int order(uint bits) {
    int magnitude = int(bits & 0x7FFFFFFFu);
    return bits >= 0x80000000u ? -magnitude : magnitude;
}

bool compared(int a, int b) {
    if (OP == EQUAL) return a == b;
    if (OP == GREATER) return a > b;
    return a >= b;
}

// MAXIMUM and MINIMUM keep `a` when both are equal (also -0 and +0).
float extremum(float a, float b) {
    if (is_nan(a) || is_nan(b)) {
        if (MODE != IGNORE_NAN) return uintBitsToFloat(NAN_BITS);
        return is_nan(a) ? b : a;
    }
    int ao = order(floatBitsToUint(a));
    int bo = order(floatBitsToUint(b));
    return (OP == MAXIMUM ? ao >= bo : ao <= bo) ? a : b;
}

uint float_lane(uint a_lane, uint b_lane) {
    float a = widen(TYPE, a_lane);
    float b = widen(TYPE, b_lane);
    if (OP == EQUAL || OP == GREATER || OP == GREATER_EQUAL) {
        bool ordered = !is_nan(a) && !is_nan(b);
        return ordered && compared(order(floatBitsToUint(a)), order(floatBitsToUint(b))) ? 1u : 0u;
    }
    precise float r = 0.0;
    if (OP == ADD) r = a + b;
    if (OP == SUB) r = a - b;
    if (OP == MUL) r = a * b;
    if (OP == POW) r = strict_pow(a, b);
    if (OP == MAXIMUM || OP == MINIMUM) r = extremum(a, b);
    return narrow(Y_TYPE, r);
}

// Low word of (a * b + 2^(s - 1)) >> s with a 64-bit product.
int shifted_product(int a, int b, uint shift_by) {
    int high;
    int low_signed;
    imulExtended(a, b, high, low_signed);
    uint low = uint(low_signed);
    if (shift_by == 0u) return int(low);
    if (shift_by <= 32u) {
        uint carry;
        low = uaddCarry(low, 1u << (shift_by - 1u), carry);
        high += int(carry);
        if (shift_by == 32u) return high;
        return int((low >> shift_by) | (uint(high) << (32u - shift_by)));
    }
    // The rounding bit is in the high word, where it can pass bit 31 only if the sum leaves 64 bits.
    high += int(1u << (shift_by - 33u));
    return high >> int(min(shift_by - 32u, 31u));
}

// TOSA leaves division by zero and the one overflow open; here they have a fixed result.
int quotient(int a, int b) {
    if (b == 0) return 0;
    if (b == -1) return int(0u - uint(a));
    return a / b;
}

int arithmetic_shift(int a, uint amount) {
    amount = min(amount, 31u);
    int r = a >> int(amount);
    if (MODE == 1u && amount != 0u) r += (a >> int(amount - 1u)) & 1;
    return r;
}

uint integer_lane(uint a_lane, uint b_lane) {
    int a = widen_int(TYPE, a_lane);
    int b = widen_int(TYPE, b_lane);
    uint amount = uint(b) & 31u;
    int r = 0;
    if (OP == ADD) r = a + b;
    if (OP == SUB) r = a - b;
    if (OP == MUL) r = TYPE == INT32 ? shifted_product(a, b, run_time(shift)) : a * b;
    if (OP == MAXIMUM) r = max(a, b);
    if (OP == MINIMUM) r = min(a, b);
    if (OP == INTDIV) r = quotient(a, b);
    if (OP == ARITHMETIC_RIGHT_SHIFT) r = arithmetic_shift(a, uint(b));
    if (OP == LOGICAL_LEFT_SHIFT) r = int(a_lane << amount);
    if (OP == LOGICAL_RIGHT_SHIFT) r = int(a_lane >> amount);
    if (OP == BITWISE_AND || OP == LOGICAL_AND) r = a & b;
    if (OP == BITWISE_OR || OP == LOGICAL_OR) r = a | b;
    if (OP == BITWISE_XOR || OP == LOGICAL_XOR) r = a ^ b;
    if (OP == EQUAL || OP == GREATER || OP == GREATER_EQUAL) r = compared(a, b) ? 1 : 0;
    return narrow_int(Y_TYPE, r);
}

// Takes the innermost coordinate of dimension `d` off `rest`.
uint peel(inout uint rest, uint d) {
    uint c = rest % d;
    rest /= d;
    return c;
}

// The elements of a and b that element `e` of y reads; BROADCAST dimensions count.
uvec2 sources(uint e) {
    if (BROADCAST == 0u) return uvec2(e);
    if (BROADCAST == 1u) return e * uvec2(a5, b5);
    uvec2 at = peel(e, d5) * uvec2(a5, b5);
    if (BROADCAST == 2u) return at + e * uvec2(a4, b4);
    at += peel(e, d4) * uvec2(a4, b4);
    if (BROADCAST == 3u) return at + e * uvec2(a3, b3);
    at += peel(e, d3) * uvec2(a3, b3);
    if (BROADCAST == 4u) return at + e * uvec2(a2, b2);
    at += peel(e, d2) * uvec2(a2, b2);
    if (BROADCAST == 5u) return at + e * uvec2(a1, b1);
    at += peel(e, d1) * uvec2(a1, b1);
    return at + e * uvec2(a0, b0);
}

void main() {
    uint lanes = lanes_of(Y_TYPE);
    uint i = invocation();
    if (i >= count / lanes + (count % lanes != 0u ? 1u : 0u)) return;
    uint first = i * lanes;
    uint present = min(lanes, count - first);
    // Lanes behind the tensor's end belong to somebody else.
    uint result = present < lanes ? y_words[i] & (0xFFFFFFFFu << (present * (32u / lanes))) : 0u;
    uint source_lanes = lanes_of(TYPE);
    // Where they lie under the word of y, the words of a and b are loaded once.
    bool under = BROADCAST == 0u && lanes > 1u && lanes == source_lanes;
    uvec2 words = under ? uvec2(a_words[i], b_words[i]) : uvec2(0u);
    for (uint k = 0u; k < present; k++) {
        uvec2 from = sources(first + k);
        if (!under) words = uvec2(a_words[from.x / source_lanes], b_words[from.y / source_lanes]);
        uint a = lane_bits(words.x, TYPE, from.x);
        uint b = lane_bits(words.y, TYPE, from.y);
        result |= place(Y_TYPE, is_float(TYPE) ? float_lane(a, b) : integer_lane(a, b), k);
    }
    y_words[i] = result;
}
