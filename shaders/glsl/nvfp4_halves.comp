// Rounds x, FP32 [m, k], to FP16 once for all the work groups that will read it, in the order that
// the reading kernel wants, and filled up with zeros to [rows, depth].
//
// An invocation takes eight elements of a row. ORDER 0: as they are. 1: 0 4 1 5 2 6 3 7, the order
// in which packed codes come apart. 2: in every 128 the order of nvfp4_gemm_fragments: element
// 32 t + 8 w + p + 4 e goes to 32 w + 16 (p / 2) + 8 (p % 2) + 2 t + e. 3: as 1, and eights in the
// order of nvfp4_gemv: [row / 8][column / 128][w][row % 8][t] for eight 4 t + w of a 128.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint ORDER = 0u;

layout(push_constant) uniform Params {
    uint count;
    uint m;
    uint k;
    uint depth;
};

layout(set = 0, binding = 0) readonly buffer X { vec4 x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { uvec4 y[]; };
layout(set = 0, binding = 1) writeonly buffer YWords { uint y_words[]; };

#include "linear.glsl"

void main() {
    uint i = invocation();
    if (i >= count) return;
    uint eights = depth >> 3;
    uint row = i / eights;
    uint eight = i - row * eights;
    if (ORDER == 3u) {
        uint sixteens = eights >> 4;
        uint tile = (i >> 7) / sixteens;
        row = 8u * tile + ((i >> 2) & 7u);
        eight = 16u * ((i >> 7) - tile * sixteens) + 4u * (i & 3u) + ((i >> 5) & 3u);
    }
    vec4 low = vec4(0.0);
    vec4 high = vec4(0.0);
    if (row < m && 8u * eight < k) {
        uint at = row * (k >> 2) + 2u * eight;
        low = x[at];
        high = x[at + 1u];
    }
    if (ORDER == 0u) {
        y[i] = uvec4(
            packFloat2x16(f16vec2(low.xy)), packFloat2x16(f16vec2(low.zw)),
            packFloat2x16(f16vec2(high.xy)), packFloat2x16(f16vec2(high.zw)));
        return;
    }
    uvec4 pairs;
    for (uint p = 0u; p < 4u; p++) pairs[p] = packFloat2x16(f16vec2(low[p], high[p]));
    if (ORDER == 2u) {
        uint to = (row * depth >> 1) + 64u * (eight >> 4) + 16u * (eight & 3u) + ((eight >> 2) & 3u);
        for (uint p = 0u; p < 4u; p++) y_words[to + 4u * p] = pairs[p];
    } else {
        y[i] = pairs;
    }
}
