// CONV2D, and TRANSPOSE_CONV2D in gather form, of FP32 NHWC (docs/kernel-interface.md).
//
// An invocation makes TILE pixels of 8 output channels; neighbouring invocations take
// neighbouring channels, so they read consecutive weights. w is [kh][kw][ic][8 * columns], bias is
// [8 * columns], both filled up with zeros; FOURS says that ic is a multiple of four. The sum of
// every output element runs over (ky, kx, ic) from +0; a tap outside x is left out: either its x is made 0, which is the same
// while the weights are finite (the sum is never -0), or, with SKIP, the old sum is kept.
// With PART the sum is dealt out to several dispatches, *_first to *_last each, in order: all but the
// first start from what is in y, the last adds the bias.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "float_controls.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint OP = 3u;
layout(constant_id = 2) const uint FOURS = 1u;
layout(constant_id = 3) const uint SKIP = 0u;
layout(constant_id = 4) const uint PART = 0u;

layout(push_constant) uniform Params {
    uint count;
    uint columns;
    uint tiles;
    uint ih;
    uint iw;
    uint ic;
    uint oh;
    uint ow;
    uint oc;
    uint kh;
    uint kw;
    uint sy;
    uint sx;
    uint dy;
    uint dx;
    uint pad_top;
    uint pad_left;
    uint y_first;
    uint y_last;
    uint x_first;
    uint x_last;
    uint c_first;
    uint c_last;
};

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 0) readonly buffer XFours { vec4 x_fours[]; };
layout(set = 0, binding = 1) readonly buffer W { vec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Bias { vec4 bias[]; };
layout(set = 0, binding = 3) buffer Y { float y[]; };
layout(set = 0, binding = 3) buffer YFours { vec4 y_fours[]; };

#include "linear.glsl"

const uint TRANSPOSE_CONV2D = 10u;
const uint TILE = 4u;

// Position of x that tap k of an output position reads; it is outside x when it is >= size.
uint tap_position(uint position, uint k, uint stride, uint dilation, uint pad, uint size) {
    if (OP != TRANSPOSE_CONV2D) return position * stride + k * dilation - pad;
    uint ahead = position - pad - k;
    uint source = ahead / stride;
    return source * stride == ahead ? source : size;
}

// A pixel of the output. Transposed pixels of a row go in the order of their remainder by the
// stride, the period: those of one remainder meet the same taps.
struct Pixel {
    uint y;
    uint x;
    uint remainder;
};

Pixel pixel_at(uint number, uint period) {
    Pixel at;
    at.y = number / ow;
    at.x = number - at.y * ow;
    at.remainder = 0u;
    if (OP == TRANSPOSE_CONV2D) {
        uint size = ow / period;
        uint longer = ow - size * period;
        uint border = longer * (size + 1u);
        uint place = at.x;
        if (place < border) {
            size += 1u;
        } else {
            place -= border;
            at.remainder = longer;
        }
        uint group = place / size;
        at.remainder += group;
        at.x = at.remainder + (place - group * size) * period;
    }
    return at;
}

Pixel pixel_after(Pixel at, uint period) {
    at.x += period;
    if (at.x >= ow) {
        at.remainder += 1u;
        at.x = at.remainder;
        if (at.remainder == period) {
            at.remainder = 0u;
            at.x = 0u;
            at.y += 1u;
        }
    }
    return at;
}

void main() {
    uint i = invocation();
    if (i >= count) return;
    uint tile = i / columns;
    uint column = i - tile * columns;
    uint image = tile / tiles;
    uint first = (tile - image * tiles) * TILE;
    uint period = OP == TRANSPOSE_CONV2D ? min(sx, ow) : 1u;

    Pixel pixels[TILE];
    pixels[0] = pixel_at(first, period);
    for (uint p = 1u; p < TILE; p++) pixels[p] = pixel_after(pixels[p - 1u], period);

    uint depth = FOURS != 0u ? ic >> 2 : ic;
    uint next = 2u * columns;
    // From here on weights follow one another: a loop is cut only if those around it step once.
    uint weight = ((y_first * kw + x_first) * ic + c_first) * next + 2u * column;
    precise vec4 low[TILE];
    precise vec4 high[TILE];
    for (uint p = 0u; p < TILE; p++) {
        low[p] = vec4(0.0);
        high[p] = vec4(0.0);
    }
    uint channel = 8u * column;
    if (PART != 0u && run_time(y_first | x_first | c_first) != 0u) {
        for (uint p = 0u; p < TILE; p++) {
            if (first + p >= oh * ow) break;
            uint at = ((image * oh + pixels[p].y) * ow + pixels[p].x) * oc + channel;
            for (uint k = 0u; k < 4u; k++) {
                if (channel + k < oc) low[p][k] = y[at + k];
                if (channel + 4u + k < oc) high[p][k] = y[at + 4u + k];
            }
        }
    }
    uint c_begin = FOURS != 0u ? c_first >> 2 : c_first;
    uint c_end = FOURS != 0u ? c_last >> 2 : c_last;
    for (uint ky = y_first; ky < y_last; ky++) {
        for (uint kx = x_first; kx < x_last; kx++) {
            uint from[TILE];
            bool inside[TILE];
            bool any = false;
            for (uint p = 0u; p < TILE; p++) {
                uint iy = tap_position(pixels[p].y, ky, sy, dy, pad_top, ih);
                uint ix = tap_position(pixels[p].x, kx, sx, dx, pad_left, iw);
                inside[p] = iy < ih && ix < iw;
                any = any || inside[p];
                from[p] = inside[p] ? ((image * ih + iy) * iw + ix) * depth : 0u;
            }
            if (OP == TRANSPOSE_CONV2D && !any) {
                weight += ic * next;
                continue;
            }
            if (FOURS != 0u) {
                for (uint c = c_begin; c < c_end; c++) {
                    vec4 v[TILE];
                    for (uint p = 0u; p < TILE; p++) {
                        v[p] = x_fours[from[p] + c];
                        if (SKIP == 0u && !inside[p]) v[p] = vec4(0.0);
                    }
                    for (uint k = 0u; k < 4u; k++) {
                        vec4 a = w[weight];
                        vec4 b = w[weight + 1u];
                        weight += next;
                        for (uint p = 0u; p < TILE; p++) {
                            if (SKIP == 0u || inside[p]) {
                                low[p] += v[p][k] * a;
                                high[p] += v[p][k] * b;
                            }
                        }
                    }
                }
            } else {
                for (uint c = c_begin; c < c_end; c++) {
                    vec4 a = w[weight];
                    vec4 b = w[weight + 1u];
                    weight += next;
                    for (uint p = 0u; p < TILE; p++) {
                        float v = x[from[p] + c];
                        if (SKIP == 0u && !inside[p]) v = 0.0;
                        if (SKIP == 0u || inside[p]) {
                            low[p] += v * a;
                            high[p] += v * b;
                        }
                    }
                }
            }
        }
    }

    bool ends = PART == 0u ||
        (run_time(y_last) == kh && run_time(x_last) == kw && run_time(c_last) == ic);
    precise vec4 low_bias = bias[2u * column];
    precise vec4 high_bias = bias[2u * column + 1u];
    bool whole = (oc & 3u) == 0u;
    for (uint p = 0u; p < TILE; p++) {
        if (first + p < oh * ow) {
            precise vec4 low_sum = low[p];
            precise vec4 high_sum = high[p];
            if (ends) {
                low_sum = low_sum + low_bias;
                high_sum = high_sum + high_bias;
            }
            uint to = ((image * oh + pixels[p].y) * ow + pixels[p].x) * oc + channel;
            if (whole) {
                y_fours[to >> 2] = low_sum;
                if (channel + 4u < oc) y_fours[(to >> 2) + 1u] = high_sum;
            } else {
                for (uint k = 0u; k < 4u; k++) {
                    if (channel + k < oc) y[to + k] = low_sum[k];
                    if (channel + 4u + k < oc) y[to + 4u + k] = high_sum[k];
                }
            }
        }
    }
}
