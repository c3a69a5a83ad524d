// NVFP4 product for many tokens where the order of matrix elements is known
// (nvfp4_fragments.glsl): decoded weights never pass through shared memory
// (docs/nvfp4-kernels.md).
//
// A work group makes M_TILE tokens by N_TILE rows of w; a subgroup M_PART tokens by 16 * TILES rows.
// A lane loads 16 bytes (32 codes) of each of its rows, for 128 columns, and decodes them by bit
// moves into the elements of matrices. The activations (from nvfp4_halves, ORDER 2, filled up with
// zeros to whole tiles and 128 columns) come through shared memory, 64 columns at a time, in two
// sets of tiles. While one set is multiplied, the next columns go from registers to the other one,
// and the columns after them are on their way to the registers.
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
const uint LEAVING = SUBGROUPS * 64u;
shared uvec4 tiles[2u * STAGE > LEAVING ? 2u * STAGE : LEAVING];
const uint X_LOADS = (M_TILE * 8u + WIDTH - 1u) / WIDTH;

uvec4 x_ahead[X_LOADS];
uvec4 w_ahead[2u * TILES];
uint s_ahead[2u * TILES];
uint row_starts[2u * TILES];

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
    WIDE_SUMS total[TILES * M_COUNT];
    [[unroll]] for (uint i = 0u; i < TILES * M_COUNT; i++) total[i] = WIDE_SUMS(0.0);

    fetch_tokens(first_token, 0u);
    fetch_weights(0u);
    keep_tokens(0u);
    fetch_tokens(first_token, 64u);
    barrier();
    for (uint start = 0u; start < depth; start += 128u) {
        uvec4 codes[2u * TILES];
        f16vec2 factors[2u * TILES];
        [[unroll]] for (uint r = 0u; r < 2u * TILES; r++) {
            codes[r] = w_ahead[r];
            uint spread = (s_ahead[r] & 0xffu) | ((s_ahead[r] & 0xff00u) << 8);
            // A product of weight and scale is then 2^-7 of itself, and exact.
            factors[r] = unpackFloat2x16(scale_pair(spread)) * float16_t(32768.0);
        }
        fetch_weights(start + 128u);
        [[unroll]] for (uint side = 0u; side < 2u; side++) {
            keep_tokens((1u - side) * STAGE);
            fetch_tokens(first_token, start + 64u * side + 128u);
            [[unroll]] for (uint step = 0u; step < 4u; step++) {
                uint i = 2u * side + (step >> 1);
                uint p = 2u * (step & 1u);
                WIDE_WEIGHTS b[TILES];
                [[unroll]] for (uint r = 0u; r < TILES; r++) {
                    uint top = codes[2u * r][i];
                    uint bottom = codes[2u * r + 1u][i];
                    float16_t top_factor = factors[2u * r][side];
                    float16_t bottom_factor = factors[2u * r + 1u][side];
                    SET_PAIR(b[r], 0, unpackFloat2x16(code_pair(top, p)) * top_factor);
                    SET_PAIR(b[r], 1, unpackFloat2x16(code_pair(top, p + 1u)) * top_factor);
                    SET_PAIR(b[r], 2, unpackFloat2x16(code_pair(bottom, p)) * bottom_factor);
                    SET_PAIR(b[r], 3, unpackFloat2x16(code_pair(bottom, p + 1u)) * bottom_factor);
                }
                [[unroll]] for (uint j = 0u; j < M_COUNT; j++) {
                    WIDE_TOKENS a;
                    coopMatLoad(
                        a, tiles, side * STAGE + (m_part + 16u * j) * LINE + 2u * step, LINE,
                        gl_CooperativeMatrixLayoutRowMajor);
                    [[unroll]] for (uint r = 0u; r < TILES; r++)
                        total[r * M_COUNT + j] = coopMatMulAdd(a, b[r], total[r * M_COUNT + j]);
                }
            }
            barrier();
        }
    }

    bool inside =
        gl_WorkGroupID.x * M_TILE + M_TILE <= m && gl_WorkGroupID.y * N_TILE + N_TILE <= n;
    uint leaving = subgroup * 64u;
    [[unroll]] for (uint r = 0u; r < TILES; r++) {
        [[unroll]] for (uint j = 0u; j < M_COUNT; j++) {
            WIDE_SUMS part = total[r * M_COUNT + j] * 128.0 * tensor_scale;
            if (ACTIVATION != NVFP4_NONE)
                for (int e = 0; e < part.length(); e++) part[e] = activated(part[e], ACTIVATION);
            uint token = first_token + m_part + 16u * j;
            uint row = first_row + 16u * r;
            if (inside) {
                coopMatStore(part, y, token * n + row, n, gl_CooperativeMatrixLayoutRowMajor);
            } else {
                coopMatStore(part, tiles, leaving, 4u, gl_CooperativeMatrixLayoutRowMajor);
                subgroupBarrier();
                for (uint e = lane; e < 256u; e += 32u) {
                    uint at_token = token + (e >> 4);
                    uint at_row = row + (e & 15u);
                    if (at_token < m && at_row < n)
                        y[at_token * n + at_row] = uintBitsToFloat(tiles[leaving + (e >> 2)][e & 3u]);
                }
                subgroupBarrier();
            }
        }
    }
}
