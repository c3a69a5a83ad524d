// CONV2D, CONV3D and TRANSPOSE_CONV2D (in gather form) of INT8 by integer dot products: four input
// channels at a time (docs/kernel-interface.md).
//
// An invocation makes TILE pixels of 8 output channels; neighbouring invocations take neighbouring
// channels. w is [kd][kh][kw][ic / 4][8 * columns] words of four input channels, filled up with zeros.
// The zero points stay outside the products:
//     sum (x - zx) (w - zw) = sum x w - zx * sum w - zw * sum x + n * zx * zw.
// SUMS & 1: what zx adds is made here, else it is in the bias already. SUMS & 2: zw may be other than
// 0. A tap outside x is the zero point, so that all four terms run over the same taps. FOURS says that
// ic is a multiple of four; otherwise the words of x are joined from neighbours.
#version 450
#extension GL_GOOGLE_include_directive : require

#include "dot.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint OP = 3u;
layout(constant_id = 2) const uint FOURS = 1u;
layout(constant_id = 3) const uint SUMS = 3u;

layout(set = 0, binding = 0) readonly buffer X { uint x_words[]; };
layout(set = 0, binding = 1) readonly buffer W { uvec4 w_fours[]; };
layout(set = 0, binding = 2) readonly buffer Bias { int bias[]; };
layout(set = 0, binding = 3) buffer Y { int y[]; };

#include "linear.glsl"
#include "volume.glsl"

uint x_word(uint at) { return x_words[min(at, uint(x_words.length()) - 1u)]; }

void store(uint to, uint channel, ivec4 sums) {
    bool begun = (z_first | y_first | x_first | c_first) != 0u;
    for (uint k = 0u; k < 4u; k++) {
        if (channel + k >= oc) return;
        y[to + k] = sums[k] + (begun ? y[to + k] : bias[HEADER + (channel + k) * bias_step]);
    }
}

void main() {
    uint i = invocation();
    if (i >= count) return;
    uint tile = i / columns;
    uint column = i - tile * columns;
    uint image = tile / tiles;
    uint first = (tile - image * tiles) * TILE;
    uvec3 pixels[TILE];
    for (uint p = 0u; p < TILE; p++) {
        uint row = (first + p) / ow;
        pixels[p] = uvec3(first + p - row * ow, row % oh, row / oh);
    }

    int x_zero = bias[0];
    int w_zero = bias[1];
    uint outside = uint(x_zero & 255) * ONES;
    // Where zx is in the bias already, a tap outside x is taken along: its products are there too.
    bool skips = (SUMS & 1u) != 0u || x_zero == 0;
    uint groups = (ic + 3u) >> 2;
    uint begin = c_first >> 2;
    uint end = (c_last + 3u) >> 2;
    // The elements of the last group that belong to ic.
    uint rest = FOURS == 0u && c_last == ic && (ic & 3u) != 0u ? 0xFFFFFFFFu >> (32u - 8u * (ic & 3u)) : 0xFFFFFFFFu;
    uint next = 2u * columns;
    int taps = 0;
    ivec4 left[TILE];
    ivec4 right[TILE];
    int x_sums[TILE];
    ivec4 left_sums = ivec4(0);
    ivec4 right_sums = ivec4(0);
    for (uint p = 0u; p < TILE; p++) {
        left[p] = right[p] = ivec4(0);
        x_sums[p] = 0;
    }
    for (uint kz = z_first; kz < z_last; kz++) {
        for (uint ky = y_first; ky < y_last; ky++) {
            for (uint kx = x_first; kx < x_last; kx++) {
                uint from[TILE];
                bool inside[TILE];
                bool any = false;
                for (uint p = 0u; p < TILE; p++) {
                    uint ix = tap_position(pixels[p].x, kx, sx, dx, pad_left, iw);
                    uint iy = tap_position(pixels[p].y, ky, sy, dy, pad_top, ih);
                    uint iz = pixels[p].z * sz + kz * dz - pad_front;
                    inside[p] = ix < iw && iy < ih && iz < id;
                    any = any || inside[p];
                    from[p] = inside[p] ? (((image * id + iz) * ih + iy) * iw + ix) * ic : 0u;
                }
                if (!any && skips) continue;
                taps++;
                uint weight = (((kz * kh + ky) * kw + kx) * groups + begin) * next + 2u * column;
                uint kept[TILE];
                if (FOURS == 0u) {
                    for (uint p = 0u; p < TILE; p++) kept[p] = x_word((from[p] >> 2) + begin);
                }
                for (uint c = begin; c < end; c++) {
                    uint v[TILE];
                    for (uint p = 0u; p < TILE; p++) {
                        uint at = (from[p] >> 2) + c;
                        if (FOURS != 0u) {
                            v[p] = inside[p] ? x_words[at] : outside;
                        } else {
                            uint following = x_word(at + 1u);
                            v[p] = inside[p] ? joined(kept[p], following, from[p]) : outside;
                            kept[p] = following;
                        }
                    }
                    uvec4 a = w_fours[weight];
                    uvec4 b = w_fours[weight + 1u];
                    weight += next;
                    for (uint p = 0u; p < TILE; p++) {
                        left[p] += dots(v[p], a);
                        right[p] += dots(v[p], b);
                    }
                    if ((SUMS & 1u) != 0u) {
                        left_sums += dots(ONES, a);
                        right_sums += dots(ONES, b);
                    }
                    if ((SUMS & 2u) != 0u) {
                        uint mask = c + 1u == groups ? rest : 0xFFFFFFFFu;
                        for (uint p = 0u; p < TILE; p++) x_sums[p] += dot_4x8(v[p] & mask, ONES);
                    }
                }
            }
        }
    }

    if ((SUMS & 1u) != 0u) {
        int both = taps * int(c_last - c_first) * x_zero * w_zero;
        for (uint p = 0u; p < TILE; p++) {
            left[p] += both - x_zero * left_sums;
            right[p] += both - x_zero * right_sums;
        }
    }
    uint channel = 8u * column;
    for (uint p = 0u; p < TILE; p++) {
        if ((SUMS & 2u) != 0u) {
            left[p] -= w_zero * x_sums[p];
            right[p] -= w_zero * x_sums[p];
        }
        if (first + p < od * oh * ow) {
            uint pixel = image * (od * oh * ow) + first + p;
            store(pixel * oc + channel, channel, left[p]);
            store(pixel * oc + channel + 4u, channel + 4u, right[p]);
        }
    }
}
