// MATMUL of FP32: y[n, h, w] = sum over c of a[n, h, c] * b[n, c, w] (docs/kernel-interface.md).
//
// An invocation makes TILE rows of 8 columns; neighbouring invocations take neighbouring columns,
// so they read consecutive b. Rows of b are `row` vec4 long; FOURS says that c, the length of the
// rows of a, is a multiple of four. The sum of every output element runs over c from +0. With PART it
// is dealt out to several dispatches, [c_first, c_last) each: all but the first start from what is in y.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "float_controls.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint FOURS = 1u;
layout(constant_id = 2) const uint PART = 0u;

layout(push_constant) uniform Params {
    uint count;
    uint columns;
    uint tiles;
    uint h;
    uint c;
    uint w;
    uint row;
    uint c_first;
    uint c_last;
};

layout(set = 0, binding = 0) readonly buffer A { float a[]; };
layout(set = 0, binding = 0) readonly buffer AFours { vec4 a_fours[]; };
layout(set = 0, binding = 1) readonly buffer B { vec4 b[]; };
layout(set = 0, binding = 2) buffer Y { float y[]; };
layout(set = 0, binding = 2) buffer YFours { vec4 y_fours[]; };

#include "linear.glsl"

const uint TILE = 8u;

void main() {
    uint i = invocation();
    if (i >= count) return;
    uint tile = i / columns;
    uint column = i - tile * columns;
    uint n = tile / tiles;
    uint first = (tile - n * tiles) * TILE;

    uint depth = FOURS != 0u ? c >> 2 : c;
    // Rows and columns beyond the last repeat it and are not stored.
    uint from[TILE];
    for (uint r = 0u; r < TILE; r++) from[r] = (n * h + min(first + r, h - 1u)) * depth;
    uint low_at = (n * c + c_first) * row + 2u * column;
    uint high_at = 2u * column + 1u < row ? low_at + 1u : low_at;
    precise vec4 low[TILE];
    precise vec4 high[TILE];
    for (uint r = 0u; r < TILE; r++) {
        low[r] = vec4(0.0);
        high[r] = vec4(0.0);
    }
    uint channel = 8u * column;
    uint to = (n * h + first) * w + channel;
    if (PART != 0u && run_time(c_first) != 0u) {
        for (uint r = 0u; r < TILE; r++) {
            if (first + r >= h) break;
            for (uint j = 0u; j < 4u; j++) {
                if (channel + j < w) low[r][j] = y[to + r * w + j];
                if (channel + 4u + j < w) high[r][j] = y[to + r * w + 4u + j];
            }
        }
    }
    if (FOURS != 0u) {
        uint k_end = c_last >> 2;
        for (uint k = c_first >> 2; k < k_end; k++) {
            vec4 v[TILE];
            for (uint r = 0u; r < TILE; r++) v[r] = a_fours[from[r] + k];
            for (uint j = 0u; j < 4u; j++) {
                vec4 u = b[low_at];
                vec4 t = b[high_at];
                low_at += row;
                high_at += row;
                for (uint r = 0u; r < TILE; r++) {
                    low[r] += v[r][j] * u;
                    high[r] += v[r][j] * t;
                }
            }
        }
    } else {
        for (uint k = c_first; k < c_last; k++) {
            vec4 u = b[low_at];
            vec4 t = b[high_at];
            low_at += row;
            high_at += row;
            for (uint r = 0u; r < TILE; r++) {
                float v = a[from[r] + k];
                low[r] += v * u;
                high[r] += v * t;
            }
        }
    }

    bool whole = (w & 3u) == 0u;
    for (uint r = 0u; r < TILE; r++) {
        if (first + r < h) {
            if (whole) {
                y_fours[to >> 2] = low[r];
                if (channel + 4u < w) y_fours[(to >> 2) + 1u] = high[r];
            } else {
                for (uint j = 0u; j < 4u; j++) {
                    if (channel + j < w) y[to + j] = low[r][j];
                    if (channel + 4u + j < w) y[to + 4u + j] = high[r][j];
                }
            }
        }
        to += w;
    }
}
