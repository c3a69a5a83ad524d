// DEPTHWISE_CONV2D of integers, NHWC (docs/kernel-interface.md).
//
// An invocation makes TILE neighbouring pixels of a row, four output channels each. w is INT8
// [kh][kw][4 * columns], filled up with zeros, so that a word holds four neighbouring channels;
// `bias` holds the zero points of x and w and then the bias. FOURS says that the multiplier is 1 and
// oc a multiple of four. KW and SX, if not 0, are the kernel's width and stride along x (dilation 1):
// then each x of a row is loaded once for all pixels that it belongs to. A tap outside x is the zero
// point, which adds nothing. Rows of taps may be dealt out to several dispatches, [y_first, kh) each:
// all but the first add to y.
#version 450
#extension GL_GOOGLE_include_directive : require

#include "storage.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint X_TYPE = 3u;
layout(constant_id = 2) const uint KW = 0u;
layout(constant_id = 3) const uint SX = 0u;
layout(constant_id = 4) const uint FOURS = 1u;

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
    uint multiplier;
    uint bias_step;
    uint y_first;
};

layout(set = 0, binding = 0) readonly buffer X { uint x_words[]; };
layout(set = 0, binding = 1) readonly buffer W { uint w_words[]; };
layout(set = 0, binding = 2) readonly buffer Bias { int bias[]; };
layout(set = 0, binding = 3) buffer Y { int y[]; };

#include "linear.glsl"
#include "integers.glsl"

const uint TILE = 4u;
const uint HEADER = 2u;
// The x of a row that a tile reads, where KW and SX are given; an array has at least one element.
const uint SPAN = (TILE - 1u) * SX + (KW == 0u ? 1u : KW);

void main() {
    uint i = invocation();
    if (i >= count) return;
    uint tile = i / columns;
    uint column = i - tile * columns;
    uint row = tile / tiles;
    uint image = row / oh;
    uint oy = row - image * oh;
    uint ox = (tile - row * tiles) * TILE;

    int x_zero = bias[0];
    ivec4 w_zero = ivec4(bias[1]);
    uint channel = 4u * column;
    uvec4 source = min((uvec4(0u, 1u, 2u, 3u) + channel) / multiplier, uvec4(ic - 1u));
    uint weight = y_first * kw * columns + column;
    Sums sums[TILE];
    for (uint p = 0u; p < TILE; p++) sums[p] = Sums(ivec4(0), ivec4(0));
    for (uint ky = y_first; ky < kh; ky++) {
        uint iy = oy * sy + ky * dy - pad_top;
        if (iy >= ih) {
            weight += kw * columns;
            continue;
        }
        if (KW != 0u) {
            ivec4 v[SPAN];
            for (uint s = 0u; s < SPAN; s++) {
                uint ix = ox * sx + s - pad_left;
                uint from = ((image * ih + iy) * iw + ix) * columns + column;
                v[s] = ix < iw ? x_values(from) - x_zero : ivec4(0);
            }
            for (uint kx = 0u; kx < KW; kx++) {
                ivec4 a = bytes_of(w_words[weight]) - w_zero;
                weight += columns;
                for (uint p = 0u; p < TILE; p++) add(sums[p], v[p * SX + kx] * a);
            }
            continue;
        }
        for (uint kx = 0u; kx < kw; kx++) {
            ivec4 a = bytes_of(w_words[weight]) - w_zero;
            weight += columns;
            for (uint p = 0u; p < TILE; p++) {
                uint ix = (ox + p) * sx + kx * dx - pad_left;
                if (ix >= iw) continue;
                uint from = ((image * ih + iy) * iw + ix) * ic;
                ivec4 v;
                if (FOURS != 0u) {
                    v = x_values((from >> 2) + column);
                } else {
                    for (uint k = 0u; k < 4u; k++) v[k] = x_value(from + source[k]);
                }
                add(sums[p], (v - x_zero) * a);
            }
        }
    }

    for (uint p = 0u; p < TILE; p++) {
        if (ox + p >= ow) break;
        uint to = (row * ow + ox + p) * oc + channel;
        for (uint k = 0u; k < 4u; k++) {
            if (channel + k >= oc) break;
            if (TWO_WORDS) {
                uint at = 2u * (to + k);
                uint from = HEADER + 2u * (channel + k) * bias_step;
                uint old_low = uint(y_first != 0u ? y[at] : bias[from]);
                int old_high = y_first != 0u ? y[at + 1u] : bias[from + 1u];
                uint carry;
                uint low = uaddCarry(uint(sums[p].low[k]), old_low, carry);
                int high = sums[p].high[k] + old_high + int(carry);
                y[at] = int(low);
                y[at + 1u] = (high << 16) >> 16;
            } else {
                int old = y_first != 0u ? y[to + k] : bias[HEADER + (channel + k) * bias_step];
                y[to + k] = sums[p].low[k] + old;
            }
        }
    }
}
