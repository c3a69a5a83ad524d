// NVFP4 product for few tokens: y[t, r] = act(scale * sum of x[t, c] * w[r, c]), x rounded to FP16,
// sums in FP32 (docs/nvfp4-kernels.md).
//
// A subgroup makes TILES * 16 rows by TOKEN_TILES * 8 tokens over some of the chunks of 128 columns.
// ROW_GROUPS subgroups share a chunk, each with rows of its own; the work group adds the sums of the
// subgroups that share rows, in order. A lane loads 16 bytes (32 codes) of each of its rows and
// decodes them by bit moves straight into the elements of a matrix: which column an element stands
// for does not matter as long as the activations have the same order. What the next turn needs is
// loaded at the beginning of a turn and used in the next one, so that compilers cannot put it off.
//
// HALVES 0: the work group first rounds all activations itself and keeps them in shared memory;
// there is one tile of at most ROOM_TOKENS tokens, and k is at most 128 * ROOM_CHUNKS. 1: they are
// halves already, from nvfp4_halves, ORDER 3. 2: each subgroup rounds those of its own chunk, at most
// ROOM_TOKENS of them, turn by turn; nothing waits for the whole work group, and k has no limit.
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
const uint ROOM = HALVES == 2u ? 20u : 16u * ROOM_CHUNKS + 4u;
const uint TWOS = (ROOM_TOKENS + 1u) / 2u;
const uint OWN = 2u * TWOS * ROOM;
const uint ROOM_SIZE =
    HALVES == 2u ? WIDTH / 32u * OWN : HALVES == 1u ? 1u : ROOM_TOKENS * ROOM;
const uint ROOM_WORDS = ROOM_TOKENS * 16u * ROOM_CHUNKS;
const uint BATCHES = (ROOM_WORDS + 8u * WIDTH - 1u) / (8u * WIDTH);
const uint BATCH = (ROOM_WORDS + BATCHES * WIDTH - 1u) / (BATCHES * WIDTH);
const uint SUMS_SIZE = STEP * ROWS * COLUMNS / 4u;
shared uvec4 memory[ROOM_SIZE > SUMS_SIZE ? ROOM_SIZE : SUMS_SIZE];
// Loaded at the start: at the end it would be waited for.
shared float scale;

// Products that would wait for one another are added to two sums in turn.
const uint TOTALS = TILES * TOKEN_TILES;
const uint CHAINS = TOTALS == 1u ? 2u : 1u;
SUMS total[CHAINS * TOTALS];
uint row_starts[2u * TILES];
uvec4 codes[2u * TILES];
uint scales[2u * TILES];
uvec4 pairs[4u * TOKEN_TILES];
// The same for the next turn.
uvec4 next_codes[2u * TILES];
uint next_scales[2u * TILES];
uvec4 next_pairs[4u * TOKEN_TILES];
vec4 next_x[4u * TWOS];
vec4 low[BATCH];
vec4 high[BATCH];

uvec4 rounded(vec4 low, vec4 high) {
    // Pairs (j, j + 4), the order in which codes come apart.
    uvec4 halves;
    [[unroll]] for (uint p = 0u; p < 4u; p++)
        halves[p] = packFloat2x16(f16vec2(low[p], high[p]));
    return halves;
}

// Word 4 t + w of a chunk lies at 4 w + t.
uint place(uint word) { return (word & ~15u) + 4u * (word & 3u) + ((word >> 2) & 3u); }

// All loads before the first use. What lies beyond the last word repeats it.
void fetch_all_tokens(uint from) {
    uint words = k >> 3;
    [[unroll]] for (uint j = 0u; j < BATCH; j++) {
        uint i = min(from + j * WIDTH + gl_LocalInvocationIndex, ROOM_WORDS - 1u);
        uint token = min(i / (16u * ROOM_CHUNKS), m - 1u);
        uint at = 2u * (token * words + min(i % (16u * ROOM_CHUNKS), words - 1u));
        low[j] = x[at];
        high[j] = x[at + 1u];
    }
}

void keep_all_tokens(uint from) {
    uint words = k >> 3;
    [[unroll]] for (uint j = 0u; j < BATCH; j++) {
        uint i = min(from + j * WIDTH + gl_LocalInvocationIndex, ROOM_WORDS - 1u);
        uint word = i % (16u * ROOM_CHUNKS);
        // Beyond the last column there are zeros.
        memory[i / (16u * ROOM_CHUNKS) * ROOM + place(word)] =
            word < words ? rounded(low[j], high[j]) : uvec4(0u);
    }
}

void fetch_own_tokens(uint chunk) {
    uint words = k >> 3;
    uint lane = gl_LocalInvocationIndex & 31u;
    uint word = min(16u * chunk + (lane & 15u), words - 1u);
    [[unroll]] for (uint j = 0u; j < TWOS; j++) {
        uint at = 2u * (min(2u * j + (lane >> 4), m - 1u) * words + word);
        next_x[2u * j] = x[at];
        next_x[2u * j + 1u] = x[at + 1u];
    }
}

void keep_own_tokens(uint chunk) {
    uint lane = gl_LocalInvocationIndex & 31u;
    uint to = (gl_LocalInvocationIndex >> 5) * OWN + (lane >> 4) * ROOM + place(lane & 15u);
    bool inside = 16u * chunk + (lane & 15u) < (k >> 3);
    [[unroll]] for (uint j = 0u; j < TWOS; j++)
        memory[to + 2u * j * ROOM] =
            inside ? rounded(next_x[2u * j], next_x[2u * j + 1u]) : uvec4(0u);
}

void take_tokens(uint from, uint tokens) {
    uint lane = gl_LocalInvocationIndex & 31u;
    uint at = from + min(lane >> 2, tokens - 1u) * ROOM;
    [[unroll]] for (uint i = 0u; i < 4u; i++) pairs[i] = memory[at + 4u * i + (lane & 3u)];
}

void fetch_halves(uint chunk, uint first_token) {
    uint chunks = (k + 127u) >> 7;
    [[unroll]] for (uint j = 0u; j < TOKEN_TILES; j++) {
        uint at = ((first_token >> 3) + j) * chunks + min(chunk, chunks - 1u);
        [[unroll]] for (uint i = 0u; i < 4u; i++)
            next_pairs[4u * j + i] =
                x_halves[128u * at + 32u * i + (gl_LocalInvocationIndex & 31u)];
    }
}

void fetch_weights(uint chunk) {
    // Pieces beyond the last repeat it; their activations are zero.
    uint piece = min(4u * chunk + (gl_LocalInvocationIndex & 3u), (k >> 5) - 1u);
    [[unroll]] for (uint r = 0u; r < 2u * TILES; r++) {
        next_codes[r] = w[row_starts[r] + piece];
        next_scales[r] = uint(s[row_starts[r] + piece]);
    }
}

void take_weights() {
    [[unroll]] for (uint r = 0u; r < 2u * TILES; r++) {
        codes[r] = next_codes[r];
        scales[r] = next_scales[r];
    }
}

void work() {
    uint mask = magnitude_mask(n);
    f16vec2 factors[2u * TILES];
    [[unroll]] for (uint r = 0u; r < TILES; r++) {
        uvec2 both = scale_pairs(scales[2u * r], scales[2u * r + 1u]);
        // A product of weight and scale is then 2^-7 of itself, and exact.
        factors[2u * r] = unpackFloat2x16(both.x) * float16_t(32768.0);
        factors[2u * r + 1u] = unpackFloat2x16(both.y) * float16_t(32768.0);
    }
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        uvec4 tops[TILES];
        uvec4 bottoms[TILES];
        [[unroll]] for (uint r = 0u; r < TILES; r++) {
            tops[r] = code_pairs(codes[2u * r][i], mask);
            bottoms[r] = code_pairs(codes[2u * r + 1u][i], mask);
        }
        [[unroll]] for (uint p = 0u; p < 4u; p += 2u) {
            TOKENS b[TOKEN_TILES];
            [[unroll]] for (uint j = 0u; j < TOKEN_TILES; j++) {
                uvec4 four = pairs[4u * j + i];
                SET_PAIR(b[j], 0, unpackFloat2x16(four[p]));
                SET_PAIR(b[j], 1, unpackFloat2x16(four[p + 1u]));
            }
            [[unroll]] for (uint r = 0u; r < TILES; r++) {
                f16vec2 factor = factors[2u * r + (i >> 1)];
                WEIGHTS a;
                SET_PAIR(a, 0, unpackFloat2x16(tops[r][p]) * factor.x);
                SET_PAIR(a, 1, unpackFloat2x16(tops[r][p + 1u]) * factor.x);
                SET_PAIR(a, 2, unpackFloat2x16(bottoms[r][p]) * factor.y);
                SET_PAIR(a, 3, unpackFloat2x16(bottoms[r][p + 1u]) * factor.y);
                [[unroll]] for (uint j = 0u; j < TOKEN_TILES; j++) {
                    uint c = (p >> 1) % CHAINS * TOTALS + r * TOKEN_TILES + j;
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

    if (HALVES == 0u) fetch_all_tokens(0u);
    // Rows beyond the last repeat it and are not stored.
    [[unroll]] for (uint r = 0u; r < 2u * TILES; r++)
        row_starts[r] = min(first_row + part * PART + 8u * r + (lane >> 2), n - 1u) * (k >> 5);
    uint chunk = turn;
    fetch_weights(chunk);
    [[unroll]] for (uint i = 0u; i < CHAINS * TOTALS; i++) total[i] = SUMS(0.0);
    if (gl_LocalInvocationIndex == WIDTH - 1u) scale = tensor_scale;
    if (HALVES == 0u) {
        keep_all_tokens(0u);
        for (uint from = BATCH * WIDTH; from < ROOM_WORDS; from += BATCH * WIDTH) {
            fetch_all_tokens(from);
            keep_all_tokens(from);
        }
        barrier();
        for (; chunk < chunks; chunk += STEP) {
            take_weights();
            fetch_weights(chunk + STEP);
            take_tokens(16u * min(chunk, ROOM_CHUNKS - 1u), min(m, ROOM_TOKENS));
            work();
        }
        barrier();
    } else if (HALVES == 1u) {
        fetch_halves(chunk, first_token);
        for (; chunk < chunks; chunk += STEP) {
            take_weights();
            [[unroll]] for (uint i = 0u; i < 4u * TOKEN_TILES; i++) pairs[i] = next_pairs[i];
            fetch_weights(chunk + STEP);
            fetch_halves(chunk + STEP, first_token);
            work();
        }
    } else {
        fetch_own_tokens(chunk);
        for (; chunk < chunks; chunk += STEP) {
            take_weights();
            keep_own_tokens(chunk);
            fetch_weights(chunk + STEP);
            fetch_own_tokens(chunk + STEP);
            subgroupBarrier();
            take_tokens(subgroup * OWN, 2u * TWOS);
            work();
            subgroupBarrier();
        }
        barrier();
    }
    if (CHAINS == 2u) total[0] = total[0] + total[CHAINS - 1u];

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
