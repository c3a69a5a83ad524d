// NVFP4 product with strict sums, without subgroup operations (docs/nvfp4.md).
//
// A team of 32 lanes makes one row of w by TOKENS tokens; neighbouring teams take neighbouring
// rows of the same tokens. Lanes meet in shared memory.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "float_controls.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint TOKENS = 1u;
layout(constant_id = 2) const uint ACTIVATION = 0u;

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
layout(set = 0, binding = 2) readonly buffer Scales { uint scales[]; };
layout(set = 0, binding = 3) readonly buffer TensorScale { float tensor_scale[]; };
layout(set = 0, binding = 4) readonly buffer Bias { float bias[]; };
layout(set = 0, binding = 5) readonly buffer Residual { float residual[]; };
layout(set = 0, binding = 6) writeonly buffer Y { float y[]; };

#include "math.glsl"
#include "linear.glsl"
#include "nvfp4_strict.glsl"

const uint WIDTH = 64u;
shared float part[WIDTH * TOKENS];

void main() {
    uint team = invocation() / LANES;
    uint lane = gl_LocalInvocationID.x % LANES;
    // Teams beyond the last repeat it and store nothing.
    uint mine = min(team, teams - 1u);
    uint first = mine / columns * TOKENS;
    uint row = mine % columns;
    uint blocks = k >> 4;
    uint w_row = first * w_step + row;

    uint from[TOKENS];
    precise float sum[TOKENS];
    for (uint t = 0u; t < TOKENS; t++) {
        from[t] = (x_at >> 2) + min(first + t, m - 1u) * (k >> 2);
        sum[t] = 0.0;
    }
    for (uint block = lane; block < blocks; block += LANES) {
        uint at = w_row * blocks + block;
        precise float inner[TOKENS];
        for (uint t = 0u; t < TOKENS; t++) inner[t] = 0.0;
        for (uint h = 0u; h < 4u; h++) {
            uint codes = packed[w_at + 2u * at + (h >> 1)] >> (16u * (h & 1u));
            vec4 w = vec4(
                code_value(codes), code_value(codes >> 4), code_value(codes >> 8),
                code_value(codes >> 12));
            for (uint t = 0u; t < TOKENS; t++) {
                vec4 v = x[from[t] + 4u * block + h];
                inner[t] = inner[t] + v.x * w.x;
                inner[t] = inner[t] + v.y * w.y;
                inner[t] = inner[t] + v.z * w.z;
                inner[t] = inner[t] + v.w * w.w;
            }
        }
        float scale = scale_value(scales[s_at + (at >> 2)] >> (8u * (at & 3u)) & 0xFFu);
        for (uint t = 0u; t < TOKENS; t++) sum[t] = sum[t] + inner[t] * scale;
    }

    uint local = gl_LocalInvocationID.x;
    for (uint t = 0u; t < TOKENS; t++) part[t * WIDTH + local] = sum[t];
    for (uint step = LANES / 2u; step > 0u; step >>= 1) {
        barrier();
        if (lane < step) {
            for (uint t = 0u; t < TOKENS; t++) {
                uint at = t * WIDTH + local;
                precise float both = part[at] + part[at + step];
                part[at] = both;
            }
        }
    }
    barrier();
    uint token = first + lane;
    if (lane < TOKENS && token < m && team < teams) {
        float total = part[lane * WIDTH + local - lane];
        float scale = tensor_scale[t_at + token * t_step + row * t_row];
        uint to = token * n + row;
        float b = (extras & HAS_BIAS) != 0u ? bias[b_at + token * b_step + row] : 0.0;
        float r = (extras & HAS_RESIDUAL) != 0u ? residual[r_at + to] : 0.0;
        y[y_at + to] = finished(total, scale, extras, b, r);
    }
}
