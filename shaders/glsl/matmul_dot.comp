// MATMUL of INT8 by integer dot products, four steps of c at a time (docs/kernel-interface.md).
//
// An invocation makes TILE rows of four columns; neighbouring invocations take neighbouring columns.
// The rows of b are filled up to `row` words of four columns; four of them are turned, so that a word
// holds four steps of one column. `zeros` holds zx and zb, which stay outside the products:
//     sum (x - zx) (b - zb) = sum x b - zx * sum b - zb * sum x + c * zx * zb.
// SUMS & 1: zx may be other than 0. SUMS & 2: zb may. FOURS says that c is a multiple of four.
#version 450
#extension GL_GOOGLE_include_directive : require

#include "dot.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint FOURS = 1u;
layout(constant_id = 2) const uint SUMS = 3u;

#include "matrices.glsl"
#include "linear.glsl"

const uint TILE = 8u;
const uint EVEN = 0x00FF00FFu;

uint x_word(uint at) { return x_words[min(at, uint(x_words.length()) - 1u)]; }

// Word j of the result has byte j of each of the four.
uvec4 turned(uvec4 rows) {
    uvec2 low = (rows.xz & EVEN) | ((rows.yw & EVEN) << 8);
    uvec2 high = ((rows.xz >> 8) & EVEN) | (rows.yw & ~EVEN);
    return uvec4(
        (low.x & 0xFFFFu) | (low.y << 16),
        (high.x & 0xFFFFu) | (high.y << 16),
        (low.x >> 16) | (low.y & 0xFFFF0000u),
        (high.x >> 16) | (high.y & 0xFFFF0000u));
}

void main() {
    uint i = invocation();
    if (i >= count) return;
    uint tile = i / row;
    uint column = i - tile * row;
    uint n = tile / tiles;
    uint first = (tile - n * tiles) * TILE;

    uint begin = c_first >> 2;
    uint end = (c_last + 3u) >> 2;
    // Rows beyond the last repeat it and are not stored.
    uint from[TILE];
    uint kept[TILE];
    ivec4 sums[TILE];
    int x_sums[TILE];
    for (uint r = 0u; r < TILE; r++) {
        from[r] = (n * h + min(first + r, h - 1u)) * c;
        kept[r] = FOURS != 0u ? 0u : x_word((from[r] >> 2) + begin);
        sums[r] = ivec4(0);
        x_sums[r] = 0;
    }
    ivec4 b_sums = ivec4(0);
    uint at = (n * c + c_first) * row + column;
    for (uint k = begin; k < end; k++) {
        uvec4 lines = uvec4(b_words[at], 0u, 0u, 0u);
        // What is there of the last four steps.
        uint mask = 0xFFFFFFFFu;
        if (FOURS != 0u || 4u * k + 4u <= c) {
            lines.yzw = uvec3(b_words[at + row], b_words[at + 2u * row], b_words[at + 3u * row]);
        } else {
            mask >>= 32u - 8u * (c & 3u);
            if ((c & 3u) > 1u) lines.y = b_words[at + row];
            if ((c & 3u) > 2u) lines.z = b_words[at + 2u * row];
        }
        at += 4u * row;
        uvec4 b = turned(lines);
        for (uint r = 0u; r < TILE; r++) {
            uint word = (from[r] >> 2) + k;
            uint v;
            if (FOURS != 0u) {
                v = x_words[word];
            } else {
                uint following = x_word(word + 1u);
                v = joined(kept[r], following, from[r]) & mask;
                kept[r] = following;
            }
            sums[r] += dots(v, b);
            if ((SUMS & 2u) != 0u) x_sums[r] += dot_4x8(v, ONES);
        }
        if ((SUMS & 1u) != 0u) b_sums += dots(ONES, b);
    }

    int x_zero = zeros[0];
    int b_zero = zeros[1];
    uint channel = 4u * column;
    for (uint r = 0u; r < TILE; r++) {
        if ((SUMS & 1u) != 0u) sums[r] += int(c_last - c_first) * x_zero * b_zero - x_zero * b_sums;
        if ((SUMS & 2u) != 0u) sums[r] -= b_zero * x_sums[r];
        if (first + r >= h) break;
        uint to = (n * h + first + r) * w + channel;
        for (uint j = 0u; j < 4u; j++) {
            if (channel + j >= w) break;
            y[to + j] = sums[r][j] + (c_first != 0u ? y[to + j] : 0);
        }
    }
}
