// AVG_POOL2D of integers, NHWC (docs/kernel-interface.md). The sum is multiplied by TOSA's
// reciprocal of the number of taps inside x. `zeros` holds the two zero points.
//
// Large windows take two dispatches: STAGE 1 sums along x, x (n, ih, iw, c) to INT32 (n, ih, ow, c), and
// STAGE 2 sums those along y and scales. STAGE 0 is both in one.
#version 450
#extension GL_GOOGLE_include_directive : require

#include "storage.glsl"
#include "words.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint TYPE = 3u;
layout(constant_id = 2) const uint STAGE = 0u;

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
};

layout(set = 0, binding = 0) readonly buffer X { uint x_words[]; };
layout(set = 0, binding = 1) readonly buffer Zeros { int zeros[]; };
layout(set = 0, binding = 2) buffer Y { uint y_words[]; };

#include "linear.glsl"

// The part of a window that lies in x, along one axis: [first, last).
uvec2 inside(uint position, uint stride, uint pad, uint kernel, uint size) {
    int start = int(position * stride) - int(pad);
    return uvec2(max(start, 0), min(start + int(kernel), int(size)));
}

// floor((2^30 + 1) * 2^power / taps), 2^(power - 1) < taps <= 2^power: one bit after the other. The
// dividend's bits are 2^power, which holds `taps` once, and then 30 more, of which one is set.
int reciprocal(uint taps, uint power) {
    uint rest = (1u << power) - taps;
    uint quotient = 1u;
    for (uint bit = 30u; bit-- > 0u;) {
        rest = 2u * rest + (bit == power ? 1u : 0u);
        uint digit = rest >= taps ? 1u : 0u;
        rest -= digit * taps;
        quotient = 2u * quotient + digit;
    }
    return int(quotient);
}

struct Window {
    uint pixel;
    uint image;
    uvec2 rows;
    uvec2 columns;
    int multiplier;
    uint shift;
};

Window window_at(uint pixel) {
    Window w;
    w.pixel = pixel;
    uint row = pixel / ow;
    w.image = row / oh;
    w.rows = inside(row - w.image * oh, sh, pad_top, kh, ih);
    w.columns = inside(pixel - row * ow, sw, pad_left, kw, iw);
    uint taps = (w.rows.y - w.rows.x) * (w.columns.y - w.columns.x);
    uint power = uint(findMSB(taps - 1u) + 1);
    w.multiplier = reciprocal(taps, power);
    w.shift = 30u + power;
    return w;
}

const uint ROWS = 1u;
const uint COLUMNS = 2u;

// Sum of `length` elements of x, `step` apart, less their zero points.
int sum_of(uint at, uint length, uint step) {
    int x_zero = zeros[0];
    int sum = 0;
    for (uint k = 0u; k < length; k++) {
        sum += widen_int(TYPE, lane_bits(x_words[at / lanes_of(TYPE)], TYPE, at)) - x_zero;
        at += step;
    }
    return sum;
}

uint mean_of(Window w, int sum) {
    int mean = wide_scaled(wide_product(sum, w.multiplier), w.shift, false);
    int limit = int(lane_mask(TYPE) >> 1);
    int y_zero = zeros[1];
    return uint(clamp(mean, -limit - 1 - y_zero, limit - y_zero) + y_zero) & lane_mask(TYPE);
}

uint averaged(Window w, uint channel) {
    int sum = 0;
    for (uint iy = w.rows.x; iy < w.rows.y; iy++) {
        uint row = w.image * ih + iy;
        if (STAGE == COLUMNS) {
            sum += int(x_words[(row * ow + w.pixel % ow) * c + channel]);
        } else {
            sum += sum_of((row * iw + w.columns.x) * c + channel, w.columns.y - w.columns.x, c);
        }
    }
    return mean_of(w, sum);
}

// Four INT8 channels from `channel` on; it and c are multiples of four.
uint averaged_fours(Window w, uint channel) {
    ivec4 sums = ivec4(0);
    uint step = c >> 2;
    for (uint iy = w.rows.x; iy < w.rows.y; iy++) {
        uint at = ((w.image * ih + iy) * iw + w.columns.x) * step + (channel >> 2);
        for (uint ix = w.columns.x; ix < w.columns.y; ix++) {
            int v = int(x_words[at]);
            at += step;
            sums += ivec4(v << 24, v << 16, v << 8, v) >> 24;
        }
    }
    sums -= int((w.rows.y - w.rows.x) * (w.columns.y - w.columns.x)) * zeros[0];
    uint result = 0u;
    for (uint k = 0u; k < 4u; k++) result |= place(INT8, mean_of(w, sums[k]), k);
    return result;
}

// Element i of (n, ih, ow, c).
uint row_sum(uint i) {
    uint place_in_rows = i / c;
    uint row = place_in_rows / ow;
    uvec2 columns = inside(place_in_rows - row * ow, sw, pad_left, kw, iw);
    return uint(sum_of((row * iw + columns.x) * c + i - place_in_rows * c, columns.y - columns.x, c));
}

void main() {
    uint i = invocation();
    if (STAGE == ROWS) {
        if (i < count) y_words[i] = row_sum(i);
        return;
    }
    uint lanes = lanes_of(TYPE);
    if (i > (count - 1u) / lanes) return;
    uint first = i * lanes;
    uint present = min(lanes, count - first);
    // Lanes behind the tensor's end belong to somebody else.
    uint result = present < lanes ? y_words[i] & (0xFFFFFFFFu << (present * (32u / lanes))) : 0u;
    uint channel = first % c;
    Window w = window_at(first / c);
    if (TYPE == INT8 && STAGE != COLUMNS && (run_time(c) & 3u) == 0u) {
        y_words[i] = averaged_fours(w, channel);
        return;
    }
    for (uint k = 0u; k < present; k++) {
        if (channel == c) {
            channel = 0u;
            w = window_at(w.pixel + 1u);
        }
        result |= place(TYPE, averaged(w, channel), k);
        channel++;
    }
    y_words[i] = result;
}
