// CONV2D, CONV3D and TRANSPOSE_CONV2D (in gather form) of integers (docs/kernel-interface.md).
//
// An invocation makes TILE pixels of 8 output channels; neighbouring invocations take neighbouring
// channels. w is INT8 [kd][kh][kw][ic][8 * columns], filled up with zeros, so that a word holds four
// neighbouring channels; `bias` holds the zero points of x and w and then the bias. FOURS says that
// ic is a multiple of four. A tap outside x is the zero point, which adds nothing. Taps and channels
// may be dealt out to several dispatches: all but the first add to y.
#version 450
#extension GL_GOOGLE_include_directive : require

#include "storage.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint OP = 3u;
layout(constant_id = 2) const uint X_TYPE = 3u;
layout(constant_id = 3) const uint FOURS = 1u;

layout(set = 0, binding = 0) readonly buffer X { uint x_words[]; };
layout(set = 0, binding = 1) readonly buffer W { uint w_words[]; };
layout(set = 0, binding = 2) readonly buffer Bias { int bias[]; };
layout(set = 0, binding = 3) buffer Y { int y[]; };

#include "linear.glsl"
#include "integers.glsl"
#include "volume.glsl"

void store(uint to, uint channel, Sums sums) {
    bool begun = (z_first | y_first | x_first | c_first) != 0u;
    for (uint k = 0u; k < 4u; k++) {
        if (channel + k >= oc) return;
        if (TWO_WORDS) {
            uint at = 2u * (to + k);
            uint from = HEADER + 2u * (channel + k) * bias_step;
            uint old_low = uint(begun ? y[at] : bias[from]);
            int old_high = begun ? y[at + 1u] : bias[from + 1u];
            uint carry;
            uint low = uaddCarry(uint(sums.low[k]), old_low, carry);
            int high = sums.high[k] + old_high + int(carry);
            y[at] = int(low);
            y[at + 1u] = (high << 16) >> 16;
        } else {
            y[to + k] = sums.low[k] + (begun ? y[to + k] : bias[HEADER + (channel + k) * bias_step]);
        }
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
    ivec4 w_zero = ivec4(bias[1]);
    uint depth = FOURS != 0u ? ic >> 2 : ic;
    uint c_begin = FOURS != 0u ? c_first >> 2 : c_first;
    uint c_end = FOURS != 0u ? c_last >> 2 : c_last;
    uint next = 2u * columns;
    Sums left[TILE];
    Sums right[TILE];
    for (uint p = 0u; p < TILE; p++) {
        left[p] = Sums(ivec4(0), ivec4(0));
        right[p] = Sums(ivec4(0), ivec4(0));
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
                    from[p] = inside[p] ? (((image * id + iz) * ih + iy) * iw + ix) * depth : 0u;
                }
                if (!any) continue;
                uint weight = (((kz * kh + ky) * kw + kx) * ic + c_first) * next + 2u * column;
                if (FOURS != 0u) {
                    for (uint c = c_begin; c < c_end; c++) {
                        ivec4 v[TILE];
                        for (uint p = 0u; p < TILE; p++) {
                            v[p] = inside[p] ? x_values(from[p] + c) - x_zero : ivec4(0);
                        }
                        for (uint k = 0u; k < 4u; k++) {
                            ivec4 a = bytes_of(w_words[weight]) - w_zero;
                            ivec4 b = bytes_of(w_words[weight + 1u]) - w_zero;
                            weight += next;
                            for (uint p = 0u; p < TILE; p++) {
                                add(left[p], v[p][k] * a);
                                add(right[p], v[p][k] * b);
                            }
                        }
                    }
                } else {
                    for (uint c = c_begin; c < c_end; c++) {
                        ivec4 a = bytes_of(w_words[weight]) - w_zero;
                        ivec4 b = bytes_of(w_words[weight + 1u]) - w_zero;
                        weight += next;
                        for (uint p = 0u; p < TILE; p++) {
                            int v = inside[p] ? x_value(from[p] + c) - x_zero : 0;
                            add(left[p], v * a);
                            add(right[p], v * b);
                        }
                    }
                }
            }
        }
    }

    uint channel = 8u * column;
    for (uint p = 0u; p < TILE; p++) {
        if (first + p < od * oh * ow) {
            uint pixel = image * (od * oh * ow) + first + p;
            store(pixel * oc + channel, channel, left[p]);
            store(pixel * oc + channel + 4u, channel + 4u, right[p]);
        }
    }
}
