// TOSA RESIZE of (rows of all images, iw, c) to (rows, ow, c) (docs/kernel-interface.md). Positions
// are exact integers: y = oy * d + offset lies n of its units from one input row to the next.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "float_controls.glsl"
#include "storage.glsl"
#include "math.glsl"
#include "words.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint MODE = 1u;
layout(constant_id = 2) const uint TYPE = 7u;
layout(constant_id = 3) const uint Y_TYPE = 7u;

layout(set = 0, binding = 0) readonly buffer X { uint x_words[]; };
layout(set = 0, binding = 1) buffer Y { uint y_words[]; };

layout(push_constant) uniform Params {
    uint count;
    uint ih;
    uint iw;
    uint c;
    uint oh;
    uint ow;
    uint scale_y_n;
    uint scale_y_d;
    uint scale_x_n;
    uint scale_x_d;
    uint offset_y;
    uint offset_x;
};

#include "linear.glsl"

const uint NEAREST = 1u;

// The two input positions round an output position, and how far it is from the lower one.
struct Spot {
    uint low;
    uint high;
    uint beyond;
};

Spot spot(uint o, uint n, uint d, uint offset, uint size) {
    int position = int(o * d + offset);
    // Division towards minus infinity, by unsigned numbers.
    int whole = position >= 0 ? int(uint(position) / n) : -int((uint(-position) + n - 1u) / n);
    int last = int(size) - 1;
    Spot s;
    s.low = uint(clamp(whole, 0, last));
    s.high = uint(clamp(whole + 1, 0, last));
    s.beyond = uint(position - whole * int(n));
    return s;
}

uint x_lane(uint row, uint column, uint channel) {
    uint at = (row * iw + column) * c + channel;
    return lane_bits(x_words[at / lanes_of(TYPE)], TYPE, at);
}

float fraction(uint beyond, uint n) { return strict_divide(float(beyond), float(n)); }

float term(uint lane, float wy, float wx) {
    precise float v = widen(TYPE, lane);
    v = v * wy;
    v = v * wx;
    return v;
}

uint blend_float(uint v00, uint v01, uint v10, uint v11, Spot y, Spot x) {
    precise float down = fraction(y.beyond, scale_y_n);
    precise float right = fraction(x.beyond, scale_x_n);
    precise float up = 1.0 - down;
    precise float left = 1.0 - right;
    precise float total = term(v00, up, left);
    total = total + term(v01, up, right);
    total = total + term(v10, down, left);
    total = total + term(v11, down, right);
    return narrow(Y_TYPE, is_nan(total) ? uintBitsToFloat(NAN_BITS) : total);
}

uint blend_int(uint v00, uint v01, uint v10, uint v11, Spot y, Spot x) {
    int down = int(y.beyond);
    int right = int(x.beyond);
    int up = int(scale_y_n) - down;
    int left = int(scale_x_n) - right;
    int total = widen_int(TYPE, v00) * up * left;
    total += widen_int(TYPE, v01) * up * right;
    total += widen_int(TYPE, v10) * down * left;
    total += widen_int(TYPE, v11) * down * right;
    return narrow_int(Y_TYPE, total);
}

// Bilinear INT16, whose sum takes up to 38 bits.
uvec2 wide_element(uint i) {
    uint pixel = i / c;
    uint channel = i - pixel * c;
    uint line = pixel / ow;
    uint image = line / oh;
    Spot y = spot(line - image * oh, scale_y_n, scale_y_d, offset_y, ih);
    Spot x = spot(pixel - line * ow, scale_x_n, scale_x_d, offset_x, iw);
    uint rows = image * ih;
    int right = int(x.beyond);
    int left = int(scale_x_n) - right;
    int above = widen_int(TYPE, x_lane(rows + y.low, x.low, channel)) * left;
    above += widen_int(TYPE, x_lane(rows + y.low, x.high, channel)) * right;
    int below = widen_int(TYPE, x_lane(rows + y.high, x.low, channel)) * left;
    below += widen_int(TYPE, x_lane(rows + y.high, x.high, channel)) * right;
    int down = int(y.beyond);
    return wide_sum(wide_product(above, int(scale_y_n) - down), wide_product(below, down));
}

uint element(uint i) {
    uint pixel = i / c;
    uint channel = i - pixel * c;
    uint line = pixel / ow;
    uint image = line / oh;
    Spot y = spot(line - image * oh, scale_y_n, scale_y_d, offset_y, ih);
    Spot x = spot(pixel - line * ow, scale_x_n, scale_x_d, offset_x, iw);
    uint rows = image * ih;
    if (MODE == NEAREST) {
        uint row = 2u * y.beyond >= scale_y_n ? y.high : y.low;
        uint column = 2u * x.beyond >= scale_x_n ? x.high : x.low;
        return x_lane(rows + row, column, channel);
    }
    uint v00 = x_lane(rows + y.low, x.low, channel);
    uint v01 = x_lane(rows + y.low, x.high, channel);
    uint v10 = x_lane(rows + y.high, x.low, channel);
    uint v11 = x_lane(rows + y.high, x.high, channel);
    return is_float(TYPE) ? blend_float(v00, v01, v10, v11, y, x) : blend_int(v00, v01, v10, v11, y, x);
}

void main() {
    uint i = invocation();
    if (Y_TYPE == INT48) {
        if (i >= count) return;
        uvec2 v = wide_element(i);
        y_words[2u * i] = v.x;
        y_words[2u * i + 1u] = v.y;
        return;
    }
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
