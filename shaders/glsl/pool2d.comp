// AVG_POOL2D and MAX_POOL2D of NHWC, taps in the order (ky, kx); those outside x are skipped
// (docs/kernel-interface.md). An average in FP32 may be dealt out to several dispatches, rows
// [y_first, y_last) of the window each: all but the first start from the sum in y, the last divides.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "float_controls.glsl"
#include "storage.glsl"
#include "math.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint OP = 8u;
layout(constant_id = 2) const uint TYPE = 7u;
layout(constant_id = 3) const uint MODE = 1u;

layout(push_constant) uniform Params {
    uint count;
    uint ih;
    uint iw;
    uint c;
    uint oh;
    uint ow;
    uint kh;
    uint kw;
    uint sh;
    uint sw;
    uint pad_top;
    uint pad_left;
    uint y_first;
    uint y_last;
};

layout(set = 0, binding = 0) readonly buffer X { uint x_words[]; };
layout(set = 0, binding = 1) buffer Y { uint y_words[]; };

#include "linear.glsl"

const uint AVG_POOL2D = 2u;
const uint IGNORE_NAN = 2u;

// Orders floats as integers: comparing floats may flush subnormals. Both zeros are 0.
int order(float v) {
    uint bits = floatBitsToUint(v);
    int magnitude = int(bits & MAGNITUDE);
    return bits >= SIGN_BIT ? -magnitude : magnitude;
}

// The first of equals stays; with IGNORE a NaN gives way to anything.
float larger(float best, float v) {
    if (is_nan(best) || is_nan(v)) {
        if (MODE != IGNORE_NAN) return uintBitsToFloat(NAN_BITS);
        return is_nan(v) ? best : v;
    }
    return order(best) >= order(v) ? best : v;
}

// The part of a window that lies in x, along one axis: [first, last).
uvec2 inside(uint position, uint stride, uint pad, uint kernel, uint size) {
    int start = int(position * stride) - int(pad);
    return uvec2(max(start, 0), min(start + int(kernel), int(size)));
}

uint pooled(uint element) {
    uint pixel = element / c;
    uint channel = element - pixel * c;
    uint row = pixel / ow;
    uint image = row / oh;
    uvec2 rows = inside(row - image * oh, sh, pad_top, kh, ih);
    uvec2 columns = inside(pixel - row * ow, sw, pad_left, kw, iw);

    uvec2 part = rows;
    precise float sum = 0.0;
    if (OP == AVG_POOL2D) {
        int top = int((row - image * oh) * sh) - int(pad_top);
        part.x = uint(max(top + int(y_first), int(rows.x)));
        part.y = uint(clamp(top + int(y_last), 0, int(rows.y)));
        if (run_time(y_first) != 0u) sum = uintBitsToFloat(y_words[element]);
    }
    float best = uintBitsToFloat(MODE == IGNORE_NAN ? NAN_BITS : SIGN_BIT | INF_BITS);
    int most = -2147483647 - 1;
    for (uint iy = part.x; iy < part.y; iy++) {
        uint at = ((image * ih + iy) * iw + columns.x) * c + channel;
        for (uint ix = columns.x; ix < columns.y; ix++) {
            uint lane = lane_bits(x_words[at / lanes_of(TYPE)], TYPE, at);
            at += c;
            if (OP == AVG_POOL2D) {
                sum += widen(TYPE, lane);
            } else if (is_float(TYPE)) {
                best = larger(best, widen(TYPE, lane));
            } else {
                most = max(most, widen_int(TYPE, lane));
            }
        }
    }
    if (OP == AVG_POOL2D) {
        if (run_time(y_last) != kh) return narrow(TYPE, sum);
        uint taps = (rows.y - rows.x) * (columns.y - columns.x);
        return narrow(TYPE, strict_divide(sum, float(taps)));
    }
    return is_float(TYPE) ? narrow(TYPE, best) : narrow_int(TYPE, most);
}

// MAX_POOL2D of four INT8 channels from `element` on; c and element are multiples of four.
uint pooled_fours(uint element) {
    uint pixel = element / c;
    uint row = pixel / ow;
    uint image = row / oh;
    uvec2 rows = inside(row - image * oh, sh, pad_top, kh, ih);
    uvec2 columns = inside(pixel - row * ow, sw, pad_left, kw, iw);
    uint step = c >> 2;
    ivec4 most = ivec4(-128);
    for (uint iy = rows.x; iy < rows.y; iy++) {
        uint at = ((image * ih + iy) * iw + columns.x) * step + ((element - pixel * c) >> 2);
        for (uint ix = columns.x; ix < columns.y; ix++) {
            int w = int(x_words[at]);
            at += step;
            most = max(most, ivec4(w << 24, w << 16, w << 8, w) >> 24);
        }
    }
    uvec4 lanes = uvec4(most) & 0xFFu;
    return lanes.x | (lanes.y << 8) | (lanes.z << 16) | (lanes.w << 24);
}

void main() {
    uint i = invocation();
    uint lanes = lanes_of(TYPE);
    uint begin = i * lanes;
    if (begin >= count) return;
    if (OP != AVG_POOL2D && TYPE == INT8 && (run_time(c) & 3u) == 0u) {
        y_words[i] = pooled_fours(begin);
        return;
    }
    if (lanes == 1u) {
        y_words[i] = pooled(i);
        return;
    }
    uint end = min(begin + lanes, count);
    // The lanes beyond the tensor stay as they are.
    uint word = 0u;
    if (end < begin + lanes) word = y_words[i] & (0xFFFFFFFFu << ((end - begin) * lane_width(TYPE)));
    for (uint element = begin; element < end; element++) {
        word |= place(TYPE, pooled(element), element);
    }
    y_words[i] = word;
}
