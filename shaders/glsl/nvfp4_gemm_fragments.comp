// NVFP4 product for many tokens where the order of matrix elements is known
// (nvfp4_fragments.glsl): decoded weights never pass through shared memory
// (docs/nvfp4-kernels.md).
//
// A work group makes M_TILE tokens by N_TILE rows of w; a subgroup M_PART tokens by 16 * TILES rows.
// A lane loads 16 bytes (32 codes) of each of its rows, for 128 columns, and decodes them by bit
// moves into the elements of matrices. The activations (from nvfp4_halves, ORDER 2, filled up with
// zeros to whole tiles and 128 columns) come through shared memory, 64 columns at a time, in two
// sets of tiles. While one set is multiplied, the next columns go from registers to the other one,
// and the columns after them are on their way to the registers. Sums leave through shared memory.
#version 450
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint WIDTH = 256u;
layout(constant_id = 1) const uint M_TILE = 128u;
layout(constant_id = 2) const uint M_PART = 128u;
layout(constant_id = 3) const uint TILES = 2u;
layout(constant_id = 4) const uint ACTIVATION = 0u;

layout(push_constant) uniform Params {
    uint m;
    uint n;
    uint k;
    uint depth;
};

layout(set = 0, binding = 0) readonly buffer X { uvec4 x[]; };
layout(set = 0, binding = 1) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 2) readonly buffer S { uint16_t s[]; };
layout(set = 0, binding = 3) readonly buffer T { float tensor_scale; };
layout(set = 0, binding = 4) writeonly buffer Y { float y[]; };
layout(set = 0, binding = 4) writeonly buffer YFours { vec4 y_fours[]; };

#include "nvfp4.glsl"
#include "nvfp4_fast.glsl"
#include "nvfp4_fragments.glsl"

const uint SUBGROUPS = WIDTH / 32u;
const uint M_PARTS = M_TILE / M_PART;
const uint N_PART = 16u * TILES;
const uint N_TILE = SUBGROUPS / M_PARTS * N_PART;
const uint M_COUNT = M_PART / 16u;
// In 16 bytes, eight halves; 16 bytes longer than the contents, against bank conflicts.
const uint LINE = 9u;
const uint STAGE = M_TILE * LINE;
const uint FOURS = N_PART / 4u;
const uint OWN_LINE = FOURS + 1u;
const uint OWN = 16u * OWN_LINE;
const uint LEAVING = SUBGROUPS * OWN;
shared uvec4 tiles[2u * STAGE > LEAVING ? 2u * STAGE : LEAVING];
const uint X_LOADS = (M_TILE * 8u + WIDTH - 1u) / WIDTH;

uvec4 x_ahead[X_LOADS];
uvec4 w_ahead[2u * TILES];
uint s_ahead[2u * TILES];
uint row_starts[2u * TILES];
uvec4 codes[2u * TILES];
f16vec2 factors[2u * TILES];
uvec4 tops[TILES];
uvec4 bottoms[TILES];
WIDE_SUMS total[TILES * M_COUNT];
// Decoding one word ahead, behind matrix products and across barriers, as far as registers suffice.
const bool EARLY = TILES < 4u;

void fetch_tokens(uint first_token, uint start) {
    uint from = min(start, depth - 64u) >> 3;
    [[unroll]] for (uint i = 0u; i < X_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * WIDTH;
        if (M_TILE * 8u % WIDTH == 0u || at < M_TILE * 8u)
            x_ahead[i] = x[(first_token + (at >> 3)) * (depth >> 3) + from + (at & 7u)];
    }
}

void keep_tokens(uint stage) {
    [[unroll]] for (uint i = 0u; i < X_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * WIDTH;
        if (M_TILE * 8u % WIDTH == 0u || at < M_TILE * 8u)
            tiles[stage + (at >> 3) * LINE + (at & 7u)] = x_ahead[i];
    }
}

void fetch_weights(uint start) {
    // Pieces beyond the last repeat it; their activations are zero.
    uint piece = min((start >> 5) + (gl_LocalInvocationIndex & 3u), (k >> 5) - 1u);
    [[unroll]] for (uint r = 0u; r < 2u * TILES; r++) {
        w_ahead[r] = w[row_starts[r] + piece];
        s_ahead[r] = uint(s[row_starts[r] + piece]);
    }
}

void take_weights() {
    [[unroll]] for (uint r = 0u; r < 2u * TILES; r++) codes[r] = w_ahead[r];
    [[unroll]] for (uint r = 0u; r < TILES; r++) {
        uvec2 both = scale_pairs(s_ahead[2u * r], s_ahead[2u * r + 1u]);
        // A product of weight and scale is then 2^-7 of itself, and exact.
        factors[2u * r] = unpackFloat2x16(both.x) * float16_t(32768.0);
        factors[2u * r + 1u] = unpackFloat2x16(both.y) * float16_t(32768.0);
    }
}

void decode(uint word) {
    uint mask = magnitude_mask(n);
    [[unroll]] for (uint r = 0u; r < TILES; r++) {
        tops[r] = code_pairs(codes[2u * r][word], mask);
        bottoms[r] = code_pairs(codes[2u * r + 1u][word], mask);
    }
}

void main() {
    uint lane = gl_LocalInvocationIndex & 31u;
    uint subgroup = gl_LocalInvocationIndex >> 5;
    uint group = lane >> 2;
    uint first_token = gl_WorkGroupID.x * M_TILE;
    uint m_part = subgroup % M_PARTS * M_PART;
    uint first_row = gl_WorkGroupID.y * N_TILE + subgroup / M_PARTS * N_PART;

    // Rows beyond the last repeat it and are not stored.
    [[unroll]] for (uint r = 0u; r < 2u * TILES; r++)
        row_starts[r] = min(first_row + 8u * r + group, n - 1u) * (k >> 5);
    // Loaded here: at the end it would be waited for.
    float scale = 128.0 * tensor_scale;
    [[unroll]] for (uint i = 0u; i < TILES * M_COUNT; i++) total[i] = WIDE_SUMS(0.0);

    fetch_tokens(first_token, 0u);
    fetch_weights(0u);
    keep_tokens(0u);
    fetch_tokens(first_token, 64u);
    if (EARLY) {
        take_weights();
        decode(0u);
        fetch_weights(128u);
    }
    barrier();
    for (uint start = 0u; start < depth; start += 128u) {
        if (!EARLY) {
            take_weights();
            fetch_weights(start + 128u);
        }
        [[unroll]] for (uint side = 0u; side < 2u; side++) {
            keep_tokens((1u - side) * STAGE);
            fetch_tokens(first_token, start + 64u * side + 128u);
            [[unroll]] for (uint half_side = 0u; half_side < 2u; half_side++) {
                uint word = 2u * side + half_side;
                if (!EARLY) decode(word);
                WIDE_WEIGHTS b[2u * TILES];
                [[unroll]] for (uint h = 0u; h < 2u; h++) {
                    [[unroll]] for (uint r = 0u; r < TILES; r++) {
                        f16vec2 factor = factors[2u * r + side];
                        uint c = h * TILES + r;
                        SET_PAIR(b[c], 0, unpackFloat2x16(tops[r][2u * h]) * factor.x);
                        SET_PAIR(b[c], 1, unpackFloat2x16(tops[r][2u * h + 1u]) * factor.x);
                        SET_PAIR(b[c], 2, unpackFloat2x16(bottoms[r][2u * h]) * factor.y);
                        SET_PAIR(b[c], 3, unpackFloat2x16(bottoms[r][2u * h + 1u]) * factor.y);
                    }
                }
                if (EARLY && word == 3u) {
                    take_weights();
                    fetch_weights(start + 256u);
                }
                uint at = side * STAGE + m_part * LINE + 4u * half_side;
                [[unroll]] for (uint h = 0u; h < 2u; h++) {
                    [[unroll]] for (uint j = 0u; j < M_COUNT; j++) {
                        WIDE_TOKENS a;
                        coopMatLoad(
                            a, tiles, at + 16u * j * LINE + 2u * h, LINE,
                            gl_CooperativeMatrixLayoutRowMajor);
                        [[unroll]] for (uint r = 0u; r < TILES; r++)
                            total[r * M_COUNT + j] =
                                coopMatMulAdd(a, b[h * TILES + r], total[r * M_COUNT + j]);
                    }
                    if (EARLY && h == 0u) decode((word + 1u) & 3u);
                }
            }
            barrier();
        }
    }

    // Out through shared memory, in whole 16 bytes: single elements take many times as long.
    uint leaving = subgroup * OWN;
    bool whole = (n & 3u) == 0u && first_row + N_PART <= n && first_token + m_part + M_PART <= m;
    [[unroll]] for (uint j = 0u; j < M_COUNT; j++) {
        uint token = first_token + m_part + 16u * j;
        subgroupBarrier();
        [[unroll]] for (uint r = 0u; r < TILES; r++)
            coopMatStore(
                total[r * M_COUNT + j], tiles, leaving + 4u * r, OWN_LINE,
                gl_CooperativeMatrixLayoutRowMajor);
        subgroupBarrier();
        if (whole) {
            [[unroll]] for (uint part = 0u; part < FOURS / 2u; part++) {
                uint i = lane + 32u * part;
                vec4 v = uintBitsToFloat(tiles[leaving + i / FOURS * OWN_LINE + i % FOURS]) * scale;
                if (ACTIVATION != NVFP4_NONE)
                    [[unroll]] for (uint e = 0u; e < 4u; e++) v[e] = activated(v[e], ACTIVATION);
                y_fours[(((token + i / FOURS) * n + first_row) >> 2) + i % FOURS] = v;
            }
        } else {
            for (uint i = lane; i < 16u * N_PART; i += 32u) {
                uint row = first_row + i % N_PART;
                uint from = leaving + i / N_PART * OWN_LINE + i % N_PART / 4u;
                if (token + i / N_PART < m && row < n)
                    y[(token + i / N_PART) * n + row] =
                        activated(uintBitsToFloat(tiles[from][i & 3u]) * scale, ACTIVATION);
            }
        }
    }
}
