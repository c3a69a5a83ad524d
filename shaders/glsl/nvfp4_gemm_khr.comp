// NVFP4 product for many tokens with cooperative matrices of any FP16 x FP16 -> FP32 shape
// (docs/nvfp4-kernels.md).
//
// A work group makes M_TILE tokens by N_TILE rows of w. For every K_TILE columns it brings the
// activations (from nvfp4_halves, ORDER 1, filled up with zeros to whole tiles) and the decoded
// weights to shared memory; every subgroup then multiplies its M_PART by N_PART part. The next
// tiles are on their way into registers meanwhile. Rows in shared memory are 16 bytes longer than
// their contents, so that a column of them meets different banks. With STAGES 2 there are two sets
// of tiles, and one barrier a step instead of two.
#version 450
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint WIDTH = 256u;
layout(constant_id = 1) const uint M_TILE = 128u;
layout(constant_id = 2) const uint N_TILE = 128u;
layout(constant_id = 3) const uint K_TILE = 32u;
layout(constant_id = 4) const uint M_PART = 64u;
layout(constant_id = 5) const uint N_PART = 32u;
layout(constant_id = 6) const uint M_SIZE = 16u;
layout(constant_id = 7) const uint N_SIZE = 16u;
layout(constant_id = 8) const uint K_SIZE = 16u;
layout(constant_id = 9) const uint STAGES = 2u;
layout(constant_id = 10) const uint ACTIVATION = 0u;

layout(push_constant) uniform Params {
    uint m;
    uint n;
    uint k;
    uint depth;
};

layout(set = 0, binding = 0) readonly buffer X { uvec4 x[]; };
layout(set = 0, binding = 1) readonly buffer W { uvec2 w[]; };
layout(set = 0, binding = 2) readonly buffer S { uint s[]; };
layout(set = 0, binding = 3) readonly buffer T { float tensor_scale; };
layout(set = 0, binding = 4) writeonly buffer Y { float y[]; };
layout(set = 0, binding = 4) writeonly buffer YFours { vec4 y_fours[]; };

#include "nvfp4.glsl"
#include "nvfp4_fast.glsl"

#define SUMS coopmat<float, gl_ScopeSubgroup, M_SIZE, N_SIZE, gl_MatrixUseAccumulator>

// Lengths in shared memory are in 16 bytes, eight halves.
const uint EIGHTS = K_TILE / 8u;
const uint LINE = EIGHTS + 1u;
const uint TOKENS_SIZE = M_TILE * LINE;
const uint STAGE = (M_TILE + N_TILE) * LINE;
const uint PARTS = (M_TILE / M_PART) * (N_TILE / N_PART);
const uint FOURS = N_PART / 4u;
const uint OWN_LINE = FOURS + 1u;
const uint OWN = M_SIZE * OWN_LINE;
const uint LEAVING = PARTS * OWN;
const uint SHARED = STAGES * STAGE;
shared uvec4 tiles[SHARED > LEAVING ? SHARED : LEAVING];

const uint X_LOADS = (M_TILE * EIGHTS + WIDTH - 1u) / WIDTH;
const uint BLOCKS = K_TILE / 16u;
const uint W_LOADS = (N_TILE * BLOCKS + WIDTH - 1u) / WIDTH;
const uint M_COUNT = M_PART / M_SIZE;
const uint N_COUNT = N_PART / N_SIZE;

uvec4 x_ahead[X_LOADS];
uvec2 w_ahead[W_LOADS];
uint s_ahead[W_LOADS];

void fetch(uint first_token, uint first_row, uint start) {
    [[unroll]] for (uint i = 0u; i < X_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * WIDTH;
        if (M_TILE * EIGHTS % WIDTH == 0u || at < M_TILE * EIGHTS)
            x_ahead[i] = x[(first_token + at / EIGHTS) * (depth >> 3) + (start >> 3) + at % EIGHTS];
    }
    [[unroll]] for (uint i = 0u; i < W_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * WIDTH;
        // Rows and blocks beyond the last repeat it: such rows are not stored, and the
        // activations of such blocks are zero.
        uint row = min(first_row + at / BLOCKS, n - 1u);
        uint block = row * (k >> 4) + min((start >> 4) + at % BLOCKS, (k >> 4) - 1u);
        if (N_TILE * BLOCKS % WIDTH == 0u || at < N_TILE * BLOCKS) {
            w_ahead[i] = w[block];
            s_ahead[i] = (s[block >> 2] >> (8u * (block & 3u))) & 0xffu;
        }
    }
}

void keep(uint stage) {
    [[unroll]] for (uint i = 0u; i < X_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * WIDTH;
        if (M_TILE * EIGHTS % WIDTH == 0u || at < M_TILE * EIGHTS)
            tiles[stage + at / EIGHTS * LINE + at % EIGHTS] = x_ahead[i];
    }
    [[unroll]] for (uint i = 0u; i < W_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * WIDTH;
        // A product of weight and scale is then 2^-7 of itself, and exact.
        f16vec2 factor = unpackFloat2x16(scale_pair(s_ahead[i])).xx * float16_t(32768.0);
        [[unroll]] for (uint j = 0u; j < 2u; j++) {
            uvec4 halves;
            [[unroll]] for (uint p = 0u; p < 4u; p++)
                halves[p] =
                    packFloat2x16(unpackFloat2x16(code_pair(w_ahead[i][j], p)) * factor);
            if (N_TILE * BLOCKS % WIDTH == 0u || at < N_TILE * BLOCKS)
                tiles[stage + TOKENS_SIZE + at / BLOCKS * LINE + at % BLOCKS * 2u + j] = halves;
        }
    }
}

void main() {
    uint first_token = gl_WorkGroupID.x * M_TILE;
    uint first_row = gl_WorkGroupID.y * N_TILE;
    uint m_part = gl_SubgroupID % (M_TILE / M_PART) * M_PART;
    uint n_part = gl_SubgroupID / (M_TILE / M_PART) * N_PART;

    SUMS total[M_COUNT * N_COUNT];
    [[unroll]] for (uint i = 0u; i < M_COUNT * N_COUNT; i++) total[i] = SUMS(0.0);

    fetch(first_token, first_row, 0u);
    keep(0u);
    barrier();
    uint stage = 0u;
    for (uint start = 0u; start < depth; start += K_TILE) {
        bool more = start + K_TILE < depth;
        if (more) fetch(first_token, first_row, start + K_TILE);
        [[unroll]] for (uint step = 0u; step < K_TILE; step += K_SIZE) {
            coopmat<float16_t, gl_ScopeSubgroup, M_SIZE, K_SIZE, gl_MatrixUseA> a[M_COUNT];
            [[unroll]] for (uint i = 0u; i < M_COUNT; i++)
                coopMatLoad(
                    a[i], tiles, stage + (m_part + i * M_SIZE) * LINE + step / 8u, LINE,
                    gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint j = 0u; j < N_COUNT; j++) {
                coopmat<float16_t, gl_ScopeSubgroup, K_SIZE, N_SIZE, gl_MatrixUseB> b;
                coopMatLoad(
                    b, tiles, stage + TOKENS_SIZE + (n_part + j * N_SIZE) * LINE + step / 8u,
                    LINE, gl_CooperativeMatrixLayoutColumnMajor);
                [[unroll]] for (uint i = 0u; i < M_COUNT; i++)
                    total[j * M_COUNT + i] = coopMatMulAdd(a[i], b, total[j * M_COUNT + i]);
            }
        }
        if (STAGES == 1u) barrier();
        stage = STAGES == 1u ? 0u : STAGE - stage;
        if (more) keep(stage);
        barrier();
    }

    // Out through shared memory, in whole 16 bytes.
    uint leaving = gl_SubgroupID * OWN;
    float scale = 128.0 * tensor_scale;
    bool whole = (n & 3u) == 0u && first_token + M_TILE <= m && first_row + N_TILE <= n;
    [[unroll]] for (uint i = 0u; i < M_COUNT; i++) {
        uint token = first_token + m_part + i * M_SIZE;
        uint row = first_row + n_part;
        subgroupBarrier();
        [[unroll]] for (uint j = 0u; j < N_COUNT; j++)
            coopMatStore(
                total[j * M_COUNT + i], tiles, leaving + j * N_SIZE / 4u, OWN_LINE,
                gl_CooperativeMatrixLayoutRowMajor);
        subgroupBarrier();
        if (whole) {
            for (uint e = gl_SubgroupInvocationID; e < M_SIZE * FOURS; e += gl_SubgroupSize) {
                vec4 v = uintBitsToFloat(tiles[leaving + e / FOURS * OWN_LINE + e % FOURS]) * scale;
                if (ACTIVATION != NVFP4_NONE)
                    [[unroll]] for (uint c = 0u; c < 4u; c++) v[c] = activated(v[c], ACTIVATION);
                y_fours[(((token + e / FOURS) * n + row) >> 2) + e % FOURS] = v;
            }
        } else {
            for (uint e = gl_SubgroupInvocationID; e < M_SIZE * N_PART; e += gl_SubgroupSize) {
                uint t = token + e / N_PART;
                uint r = row + e % N_PART;
                uint from = leaving + e / N_PART * OWN_LINE + e % N_PART / 4u;
                if (t < m && r < n)
                    y[t * n + r] =
                        activated(uintBitsToFloat(tiles[from][e & 3u]) * scale, ACTIVATION);
            }
        }
    }
}
