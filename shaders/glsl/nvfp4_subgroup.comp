// NVFP4 product with strict sums: the bits of nvfp4_scalar, with subgroup shuffles
// (docs/nvfp4.md).
//
// A team of 32 lanes makes ROWS rows of w by TOKENS tokens. Teams lie in subgroups of any size:
// lanes of one subgroup meet by shuffles, others in shared memory. PAIRS says that packed codes
// begin at an even word.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "float_controls.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint WIDTH = 64u;
layout(constant_id = 1) const uint ROWS = 1u;
layout(constant_id = 2) const uint TOKENS = 1u;
layout(constant_id = 3) const uint PAIRS = 1u;
layout(constant_id = 4) const uint ACTIVATION = 0u;

layout(push_constant) uniform Params {
    uint teams;
    uint columns;
    uint m;
    uint n;
    uint k;
    uint x_at;
    uint w_at;
    uint s_at;
    uint t_at;
    uint b_at;
    uint r_at;
    uint y_at;
    uint w_step;
    uint t_step;
    uint t_row;
    uint b_step;
    uint extras;
};

layout(set = 0, binding = 0) readonly buffer X { vec4 x[]; };
layout(set = 0, binding = 1) readonly buffer Packed { uint packed[]; };
layout(set = 0, binding = 1) readonly buffer PackedPairs { uvec2 packed_pairs[]; };
layout(set = 0, binding = 2) readonly buffer Scales { uint scales[]; };
layout(set = 0, binding = 3) readonly buffer TensorScale { float tensor_scale[]; };
layout(set = 0, binding = 4) readonly buffer Bias { float bias[]; };
layout(set = 0, binding = 5) readonly buffer Residual { float residual[]; };
layout(set = 0, binding = 6) writeonly buffer Y { float y[]; };

#include "math.glsl"
#include "linear.glsl"
#include "nvfp4_strict.glsl"

const uint SUMS = ROWS * TOKENS;
shared float part[WIDTH * SUMS];

uvec2 block_codes(uint at) {
    if (PAIRS != 0u) return packed_pairs[(w_at >> 1) + at];
    return uvec2(packed[w_at + 2u * at], packed[w_at + 2u * at + 1u]);
}

void main() {
    // Where subgroups are not full, the shuffles are left out.
    bool full = gl_NumSubgroups * gl_SubgroupSize == gl_WorkGroupSize.x;
    uint local = full ? gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID
                      : gl_LocalInvocationID.x;
    uint reach = full ? gl_SubgroupSize : 1u;
    uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uint team = group * (gl_WorkGroupSize.x / LANES) + local / LANES;
    uint lane = local % LANES;
    // Teams, rows and tokens beyond the last repeat it and store nothing.
    uint mine = min(team, teams - 1u);
    uint first = mine / columns * TOKENS;
    uint first_row = mine % columns * ROWS;
    uint blocks = k >> 4;

    uint from[TOKENS];
    uint w_row[ROWS];
    precise float sum[SUMS];
    [[unroll]] for (uint t = 0u; t < TOKENS; t++)
        from[t] = (x_at >> 2) + min(first + t, m - 1u) * (k >> 2);
    [[unroll]] for (uint r = 0u; r < ROWS; r++)
        w_row[r] = (first * w_step + min(first_row + r, n - 1u)) * blocks;
    [[unroll]] for (uint i = 0u; i < SUMS; i++) sum[i] = 0.0;

    for (uint block = lane; block < blocks; block += LANES) {
        uvec2 codes[ROWS];
        float scale[ROWS];
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            uint at = w_row[r] + block;
            codes[r] = block_codes(at);
            scale[r] = scale_value(scales[s_at + (at >> 2)] >> (8u * (at & 3u)) & 0xFFu);
        }
        precise float inner[SUMS];
        [[unroll]] for (uint i = 0u; i < SUMS; i++) inner[i] = 0.0;
        [[unroll]] for (uint h = 0u; h < 4u; h++) {
            vec4 v[TOKENS];
            [[unroll]] for (uint t = 0u; t < TOKENS; t++) v[t] = x[from[t] + 4u * block + h];
            [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                uint four = codes[r][h >> 1] >> (16u * (h & 1u));
                [[unroll]] for (uint j = 0u; j < 4u; j++) {
                    float w = code_value(four >> (4u * j));
                    [[unroll]] for (uint t = 0u; t < TOKENS; t++)
                        inner[r * TOKENS + t] = inner[r * TOKENS + t] + v[t][j] * w;
                }
            }
        }
        [[unroll]] for (uint r = 0u; r < ROWS; r++)
            [[unroll]] for (uint t = 0u; t < TOKENS; t++)
                sum[r * TOKENS + t] = sum[r * TOKENS + t] + inner[r * TOKENS + t] * scale[r];
    }

    [[unroll]] for (uint step = LANES / 2u; step > 0u; step >>= 1) {
        if (step < reach) {
            [[unroll]] for (uint i = 0u; i < SUMS; i++)
                sum[i] = sum[i] + subgroupShuffleXor(sum[i], step);
        } else {
            [[unroll]] for (uint i = 0u; i < SUMS; i++) part[i * WIDTH + local] = sum[i];
            barrier();
            [[unroll]] for (uint i = 0u; i < SUMS; i++)
                sum[i] = sum[i] + part[i * WIDTH + (local ^ step)];
            barrier();
        }
    }
    // Every lane has every sum; lane i finishes sum i.
    float total = 0.0;
    [[unroll]] for (uint i = 0u; i < SUMS; i++)
        if (lane == i) total = sum[i];
    uint row = first_row + lane / TOKENS;
    uint token = first + lane % TOKENS;
    if (lane < SUMS && row < n && token < m && team < teams) {
        float scale = tensor_scale[t_at + token * t_step + row * t_row];
        uint to = token * n + row;
        float b = (extras & HAS_BIAS) != 0u ? bias[b_at + token * b_step + row] : 0.0;
        float r = (extras & HAS_RESIDUAL) != 0u ? residual[r_at + to] : 0.0;
        y[y_at + to] = finished(total, scale, extras, b, r);
    }
}
