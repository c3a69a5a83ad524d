// MATMUL of integers: y[n, h, w] = sum over c of (x[n, h, c] - zx) * (b[n, c, w] - zb)
// (docs/kernel-interface.md).
//
// An invocation makes TILE rows of four columns; neighbouring invocations take neighbouring columns.
// The rows of b are filled up to `row` groups of four; `zeros` holds zx and zb. FOURS says that c is
// a multiple of four. The sum may be dealt out to several dispatches: all but the first add to y.
#version 450
#extension GL_GOOGLE_include_directive : require

#include "storage.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint X_TYPE = 3u;
layout(constant_id = 2) const uint FOURS = 1u;

#include "matrices.glsl"
#include "linear.glsl"
#include "integers.glsl"

const uint TILE = 8u;

// Group `at` of four neighbours of b.
ivec4 b_values(uint at) {
    if (X_TYPE == INT8) return bytes_of(b_words[at]);
    ivec2 v = ivec2(b_words[2u * at], b_words[2u * at + 1u]);
    return ivec4(v.x << 16, v.x, v.y << 16, v.y) >> 16;
}

void main() {
    uint i = invocation();
    if (i >= count) return;
    uint tile = i / row;
    uint column = i - tile * row;
    uint n = tile / tiles;
    uint first = (tile - n * tiles) * TILE;

    int x_zero = zeros[0];
    ivec4 b_zero = ivec4(zeros[1]);
    uint depth = FOURS != 0u ? c >> 2 : c;
    // Rows beyond the last repeat it and are not stored.
    uint from[TILE];
    Sums sums[TILE];
    for (uint r = 0u; r < TILE; r++) {
        from[r] = (n * h + min(first + r, h - 1u)) * depth;
        sums[r] = Sums(ivec4(0), ivec4(0));
    }
    uint at = (n * c + c_first) * row + column;
    uint k_end = FOURS != 0u ? c_last >> 2 : c_last;
    for (uint k = FOURS != 0u ? c_first >> 2 : c_first; k < k_end; k++) {
        if (FOURS != 0u) {
            ivec4 v[TILE];
            for (uint r = 0u; r < TILE; r++) v[r] = x_values(from[r] + k) - x_zero;
            for (uint j = 0u; j < 4u; j++) {
                ivec4 u = b_values(at) - b_zero;
                at += row;
                for (uint r = 0u; r < TILE; r++) add(sums[r], v[r][j] * u);
            }
        } else {
            ivec4 u = b_values(at) - b_zero;
            at += row;
            for (uint r = 0u; r < TILE; r++) add(sums[r], (x_value(from[r] + k) - x_zero) * u);
        }
    }

    uint channel = 4u * column;
    for (uint r = 0u; r < TILE; r++) {
        if (first + r >= h) break;
        uint to = (n * h + first + r) * w + channel;
        for (uint j = 0u; j < 4u; j++) {
            if (channel + j >= w) break;
            if (TWO_WORDS) {
                uint place_of_y = 2u * (to + j);
                uint carry = 0u;
                uint low = uint(sums[r].low[j]);
                int high = sums[r].high[j];
                if (c_first != 0u) {
                    low = uaddCarry(low, uint(y[place_of_y]), carry);
                    high += y[place_of_y + 1u] + int(carry);
                }
                y[place_of_y] = int(low);
                y[place_of_y + 1u] = (high << 16) >> 16;
            } else {
                y[to + j] = sums[r].low[j] + (c_first != 0u ? y[to + j] : 0);
            }
        }
    }
}
