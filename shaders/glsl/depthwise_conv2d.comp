// DEPTHWISE_CONV2D of FP32 NHWC (docs/kernel-interface.md).
//
// An invocation makes TILE neighbouring pixels of a row, four output channels each; neighbouring
// invocations take neighbouring channels. w is [kh][kw][4 * columns], bias is [4 * columns], both
// filled up with zeros. KW and SX, if not 0, are the kernel's width and stride along x (dilation
// 1): then each x of a row is loaded once for all pixels that it belongs to. The sum of every
// output element runs over (ky, kx) from +0; a tap outside x is left out (conv2d.comp says how). With
// PART the rows of taps are dealt out to several dispatches, [y_first, y_last) each: all but the first
// start from what is in y, the last adds the bias.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "float_controls.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint KW = 0u;
layout(constant_id = 2) const uint SX = 0u;
layout(constant_id = 3) const uint FOURS = 1u;
layout(constant_id = 4) const uint SKIP = 0u;
layout(constant_id = 5) const uint PART = 0u;

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
    uint y_first;
    uint y_last;
};

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 0) readonly buffer XFours { vec4 x_fours[]; };
layout(set = 0, binding = 1) readonly buffer W { vec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Bias { vec4 bias[]; };
layout(set = 0, binding = 3) buffer Y { float y[]; };
layout(set = 0, binding = 3) buffer YFours { vec4 y_fours[]; };

#include "linear.glsl"

const uint TILE = 4u;
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

    // With FOURS the input channels are the output channels, a multiple of four.
    uint pixel = FOURS != 0u ? ic >> 2 : ic;
    uvec4 channel = uvec4(column);
    if (FOURS == 0u) {
        channel = min((uvec4(0u, 1u, 2u, 3u) + 4u * column) / multiplier, uvec4(ic - 1u));
    }
    uint weight = y_first * kw * columns + column;
    uint iy = oy * sy + y_first * dy - pad_top;
    uint ix = ox * sx - pad_left;
    precise vec4 sum[TILE];
    for (uint p = 0u; p < TILE; p++) sum[p] = vec4(0.0);
    uint to = (row * ow + ox) * oc + 4u * column;
    if (PART != 0u && run_time(y_first) != 0u) {
        for (uint p = 0u; p < TILE; p++) {
            if (ox + p >= ow) break;
            for (uint k = 0u; k < 4u; k++) {
                if (4u * column + k < oc) sum[p][k] = y[to + p * oc + k];
            }
        }
    }
    for (uint ky = y_first; ky < y_last; ky++) {
        bool row_inside = iy < ih;
        uint from = (image * ih + iy) * iw;
        if (KW != 0u) {
            vec4 v[SPAN];
            bool inside[SPAN];
            for (uint s = 0u; s < SPAN; s++) {
                inside[s] = row_inside && ix + s < iw;
                v[s] = x_fours[inside[s] ? (from + ix + s) * pixel + column : 0u];
                if (SKIP == 0u && !inside[s]) v[s] = vec4(0.0);
            }
            for (uint kx = 0u; kx < KW; kx++) {
                vec4 a = w[weight];
                weight += columns;
                for (uint p = 0u; p < TILE; p++) {
                    if (SKIP == 0u || inside[p * SX + kx]) sum[p] += v[p * SX + kx] * a;
                }
            }
        } else {
            for (uint kx = 0u; kx < kw; kx++) {
                vec4 a = w[weight];
                weight += columns;
                for (uint p = 0u; p < TILE; p++) {
                    uint at = ix + p * sx + kx * dx;
                    bool inside = row_inside && at < iw;
                    at = inside ? (from + at) * pixel : 0u;
                    vec4 v;
                    if (FOURS != 0u) {
                        v = x_fours[at + column];
                    } else {
                        v.x = x[at + channel.x];
                        v.y = x[at + channel.y];
                        v.z = x[at + channel.z];
                        v.w = x[at + channel.w];
                    }
                    if (SKIP == 0u && !inside) v = vec4(0.0);
                    if (SKIP == 0u || inside) sum[p] += v * a;
                }
            }
        }
        iy += dy;
    }

    bool ends = PART == 0u || run_time(y_last) == kh;
    precise vec4 b = bias[column];
    for (uint p = 0u; p < TILE; p++) {
        if (ox + p < ow) {
            precise vec4 result = sum[p];
            if (ends) result = result + b;
            if (FOURS != 0u) {
                y_fours[to >> 2] = result;
            } else {
                for (uint k = 0u; k < 4u; k++) {
                    if (4u * column + k < oc) y[to + k] = result[k];
                }
            }
        }
        to += oc;
    }
}
