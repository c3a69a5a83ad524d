// NVFP4 product for few tokens: y[t, r] = act(scale * sum of x[t, c] * w[r, c]), x rounded to FP16,
// sums in FP32 (docs/nvfp4-kernels.md).
//
// A subgroup makes TILES * 16 rows by TOKEN_TILES * 8 tokens over some of the chunks of 128 columns.
// ROW_GROUPS subgroups share a chunk, each with rows of its own; the work group adds the sums of the
// subgroups that share rows, in order. A lane loads 16 bytes (32 codes) of each of its rows and
// decodes them by bit moves straight into the elements of a matrix: which column an element stands
// for does not matter as long as the activations have the same order. The weights of the next chunk
// are on their way meanwhile.
//
// HALVES 0: the work group first rounds all activations itself and keeps them in shared memory;
// there is one tile of at most ROOM_TOKENS tokens, and k is at most 128 * ROOM_CHUNKS. 1: they are
// halves already, from nvfp4_halves, ORDER 3.
#version 450
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint WIDTH = 896u;
layout(constant_id = 1) const uint TILES = 1u;
layout(constant_id = 2) const uint TOKEN_TILES = 1u;
layout(constant_id = 3) const uint ROW_GROUPS = 2u;
layout(constant_id = 4) const uint HALVES = 0u;
layout(constant_id = 5) const uint ROOM_TOKENS = 1u;
layout(constant_id = 6) const uint ROOM_CHUNKS = 1u;
layout(constant_id = 7) const uint ACTIVATION = 0u;

layout(push_constant) uniform Params {
    uint m;
    uint n;
    uint k;
};

layout(set = 0, binding = 0) readonly buffer X { vec4 x[]; };
layout(set = 0, binding = 0) readonly buffer XHalves { uvec4 x_halves[]; };
layout(set = 0, binding = 1) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 2) readonly buffer S { uint16_t s[]; };
layout(set = 0, binding = 3) readonly buffer T { float tensor_scale; };
layout(set = 0, binding = 4) writeonly buffer Y { float y[]; };

#include "nvfp4.glsl"
#include "nvfp4_fast.glsl"
#include "nvfp4_fragments.glsl"

const uint STEP = WIDTH / 32u / ROW_GROUPS;
const uint PART = 16u * TILES;
const uint ROWS = PART * ROW_GROUPS;
const uint COLUMNS = 8u * TOKEN_TILES;
// Lengths in shared memory are in 16 bytes. A token's room is 64 bytes longer than its contents, so
// that two tokens at once meet all banks.
const uint ROOM = 16u * ROOM_CHUNKS + 4u;
const uint ROOM_SIZE = HALVES != 0u ? 1u : ROOM_TOKENS * ROOM;
const uint ROOM_WORDS = ROOM_TOKENS * 16u * ROOM_CHUNKS;
const uint BATCHES = (ROOM_WORDS + 8u * WIDTH - 1u) / (8u * WIDTH);
const uint BATCH = (ROOM_WORDS + BATCHES * WIDTH - 1u) / (BATCHES * WIDTH);
const uint SUMS_SIZE = STEP * ROWS * COLUMNS / 4u;
shared uvec4 memory[ROOM_SIZE > SUMS_SIZE ? ROOM_SIZE : SUMS_SIZE];
// Loaded at the start: at the end it would be waited for.
shared float scale;

uint row_starts[2u * TILES];
// Two sets: one is worked on while the other is on its way.
uvec4 codes[4u * TILES];
uint scales[4u * TILES];
uvec4 pairs[8u * TOKEN_TILES];
SUMS total[TILES * TOKEN_TILES];

void bring_tokens() {
    uint words = k >> 3;
    for (uint from = 0u; from < ROOM_WORDS; from += BATCH * WIDTH) {
        // All loads before the first use. What lies beyond the last word repeats it.
        vec4 low[BATCH];
        vec4 high[BATCH];
        [[unroll]] for (uint j = 0u; j < BATCH; j++) {
            uint i = min(from + j * WIDTH + gl_LocalInvocationIndex, ROOM_WORDS - 1u);
            uint token = min(i / (16u * ROOM_CHUNKS), m - 1u);
            uint at = 2u * (token * words + min(i % (16u * ROOM_CHUNKS), words - 1u));
            low[j] = x[at];
            high[j] = x[at + 1u];
        }
        [[unroll]] for (uint j = 0u; j < BATCH; j++) {
            uint i = min(from + j * WIDTH + gl_LocalInvocationIndex, ROOM_WORDS - 1u);
            uint word = i % (16u * ROOM_CHUNKS);
            // Pairs (j, j + 4), the order in which codes come apart.
            uvec4 halves;
            [[unroll]] for (uint p = 0u; p < 4u; p++)
                halves[p] = packFloat2x16(f16vec2(low[j][p], high[j][p]));
            // Word 4 t + w of a chunk goes to 4 w + t; beyond the last column there are zeros.
            uint to = i / (16u * ROOM_CHUNKS) * ROOM + (word & ~15u);
            memory[to + 4u * (word & 3u) + ((word >> 2) & 3u)] = word < words ? halves : uvec4(0u);
        }
    }
    barrier();
}

void fetch_weights(uint side, uint chunk) {
    // Pieces beyond the last repeat it; their activations are zero.
    uint piece = min(4u * chunk + (gl_LocalInvocationIndex & 3u), (k >> 5) - 1u);
    [[unroll]] for (uint r = 0u; r < 2u * TILES; r++) {
        codes[side * 2u * TILES + r] = w[row_starts[r] + piece];
        scales[side * 2u * TILES + r] = uint(s[row_starts[r] + piece]);
    }
}

void fetch_halves(uint side, uint chunk, uint first_token) {
    uint chunks = (k + 127u) >> 7;
    [[unroll]] for (uint j = 0u; j < TOKEN_TILES; j++) {
        uint at = ((first_token >> 3) + j) * chunks + min(chunk, chunks - 1u);
        [[unroll]] for (uint i = 0u; i < 4u; i++)
            pairs[(side * TOKEN_TILES + j) * 4u + i] =
                x_halves[128u * at + 32u * i + (gl_LocalInvocationIndex & 31u)];
    }
}

void take_tokens(uint side, uint chunk) {
    uint lane = gl_LocalInvocationIndex & 31u;
    uint at = min(lane >> 2, min(m, ROOM_TOKENS) - 1u) * ROOM + 16u * min(chunk, ROOM_CHUNKS - 1u);
    [[unroll]] for (uint i = 0u; i < 4u; i++)
        pairs[side * TOKEN_TILES * 4u + i] = memory[at + 4u * i + (lane & 3u)];
}

void work(uint side) {
    f16vec2 factors[2u * TILES];
    [[unroll]] for (uint r = 0u; r < 2u * TILES; r++) {
        uint both = scales[side * 2u * TILES + r];
        // A product of weight and scale is then 2^-7 of itself, and exact.
        factors[r] = unpackFloat2x16(scale_pair((both & 0xffu) | ((both & 0xff00u) << 8)))
            * float16_t(32768.0);
    }
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        [[unroll]] for (uint p = 0u; p < 4u; p += 2u) {
            TOKENS b[TOKEN_TILES];
            [[unroll]] for (uint j = 0u; j < TOKEN_TILES; j++) {
                uvec4 four = pairs[(side * TOKEN_TILES + j) * 4u + i];
                SET_PAIR(b[j], 0, unpackFloat2x16(four[p]));
                SET_PAIR(b[j], 1, unpackFloat2x16(four[p + 1u]));
            }
            [[unroll]] for (uint r = 0u; r < TILES; r++) {
                float16_t top_factor = factors[2u * r][i >> 1];
                float16_t bottom_factor = factors[2u * r + 1u][i >> 1];
                uint top = codes[(side * TILES + r) * 2u][i];
                uint bottom = codes[(side * TILES + r) * 2u + 1u][i];
                WEIGHTS a;
                SET_PAIR(a, 0, unpackFloat2x16(code_pair(top, p)) * top_factor);
                SET_PAIR(a, 1, unpackFloat2x16(code_pair(top, p + 1u)) * top_factor);
                SET_PAIR(a, 2, unpackFloat2x16(code_pair(bottom, p)) * bottom_factor);
                SET_PAIR(a, 3, unpackFloat2x16(code_pair(bottom, p + 1u)) * bottom_factor);
                [[unroll]] for (uint j = 0u; j < TOKEN_TILES; j++) {
                    uint c = r * TOKEN_TILES + j;
                    total[c] = coopMatMulAdd(a, b[j], total[c]);
                }
            }
        }
    }
}

void main() {
    uint lane = gl_LocalInvocationIndex & 31u;
    uint subgroup = gl_LocalInvocationIndex >> 5;
    uint part = subgroup % ROW_GROUPS;
    uint turn = subgroup / ROW_GROUPS;
    uint first_row = gl_WorkGroupID.x * ROWS;
    uint first_token = gl_WorkGroupID.y * COLUMNS;
    uint chunks = (k + 127u) >> 7;

    // Rows beyond the last repeat it and are not stored.
    [[unroll]] for (uint r = 0u; r < 2u * TILES; r++)
        row_starts[r] = min(first_row + part * PART + 8u * r + (lane >> 2), n - 1u) * (k >> 5);
    [[unroll]] for (uint i = 0u; i < TILES * TOKEN_TILES; i++) total[i] = SUMS(0.0);
    if (gl_LocalInvocationIndex == WIDTH - 1u) scale = tensor_scale;

    uint chunk = turn;
    fetch_weights(0u, chunk);
    if (HALVES != 0u) {
        fetch_halves(0u, chunk, first_token);
        for (; chunk < chunks; chunk += 2u * STEP) {
            fetch_weights(1u, chunk + STEP);
            fetch_halves(1u, chunk + STEP, first_token);
            work(0u);
            if (chunk + STEP < chunks) {
                fetch_weights(0u, chunk + 2u * STEP);
                fetch_halves(0u, chunk + 2u * STEP, first_token);
                work(1u);
            }
        }
    } else {
        bring_tokens();
        for (; chunk < chunks; chunk += 2u * STEP) {
            take_tokens(0u, chunk);
            fetch_weights(1u, chunk + STEP);
            work(0u);
            if (chunk + STEP < chunks) {
                take_tokens(1u, chunk + STEP);
                fetch_weights(0u, chunk + 2u * STEP);
                work(1u);
            }
        }
        barrier();
    }

    // memory[turn][token][row]
    [[unroll]] for (uint r = 0u; r < TILES; r++)
        [[unroll]] for (uint j = 0u; j < TOKEN_TILES; j++)
            coopMatStore(
                total[r * TOKEN_TILES + j], memory,
                ((turn * COLUMNS + 8u * j) * ROWS + part * PART + 16u * r) / 4u, ROWS / 4u,
                gl_CooperativeMatrixLayoutColumnMajor);
    barrier();
    uint wanted = min(COLUMNS, m - first_token) * ROWS;
    for (uint i = gl_LocalInvocationIndex; i < wanted; i += WIDTH) {
        uint row = first_row + i % ROWS;
        if (row < n) {
            float v = 0.0;
            [[unroll]] for (uint j = 0u; j < STEP; j++)
                v += uintBitsToFloat(memory[j * SUMS_SIZE / STEP + (i >> 2)][i & 3u]);
            y[(first_token + i / ROWS) * n + row] = activated(v * 128.0 * scale, ACTIVATION);
        }
    }
}
