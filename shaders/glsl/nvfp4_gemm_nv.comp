// NVFP4 product for many tokens with VK_NV_cooperative_matrix2: matrices of the whole work group,
// weights decoded as they are loaded, ragged edges by tensor layouts (docs/nvfp4-kernels.md).
//
// The activations come from nvfp4_halves, ORDER 0, filled up with zeros to [.., DEPTH]. Geometry is
// in specialization constants: with parameters the driver's code is half as fast. CLAMP 1 keeps
// within the tensors; 0 only where tiles divide them.
#version 450
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_NV_cooperative_matrix2 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_EXT_shader_8bit_storage : require
#extension GL_EXT_shader_16bit_storage : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint WIDTH = 256u;
layout(constant_id = 1) const uint M_TILE = 128u;
layout(constant_id = 2) const uint N_TILE = 256u;
layout(constant_id = 3) const uint K_TILE = 64u;
layout(constant_id = 4) const uint CLAMP = 1u;
layout(constant_id = 5) const uint ACTIVATION = 0u;
layout(constant_id = 6) const uint M = 128u;
layout(constant_id = 7) const uint N = 256u;
layout(constant_id = 8) const uint K = 64u;
layout(constant_id = 9) const uint DEPTH = 64u;

layout(set = 0, binding = 0) readonly buffer X { float16_t x[]; };
layout(set = 0, binding = 1) readonly buffer W { uint8_t w[]; };
layout(set = 0, binding = 2) readonly buffer S { uint8_t s[]; };
layout(set = 0, binding = 3) readonly buffer T { float tensor_scale; };
layout(set = 0, binding = 4) writeonly buffer Y { float y[]; };

#include "nvfp4.glsl"
#include "nvfp4_fast.glsl"

layout(buffer_reference, std430, buffer_reference_align = 8) buffer Block { uint words[2]; };

shared float16_t scale_values[256];

// Weight times block scale, times 2^-7, exactly.
float16_t decoded(const in Block block, const in uint at[2], const in uint inside[2]) {
    uint code = block.words[inside[1] >> 3] >> ((inside[1] & 7u) * 4u);
    f16vec2 value = unpackFloat2x16(((code & 8u) << 12) | ((code & 7u) << 9));
    return value.x * scale_values[uint(s[at[0] * (K >> 4) + at[1]])];
}

float finished(const in uint row, const in uint column, const in float v) {
    return activated(v, ACTIVATION);
}

void main() {
    for (uint i = gl_LocalInvocationIndex; i < 256u; i += WIDTH)
        scale_values[i] = unpackFloat2x16(scale_pair(i)).x * float16_t(32768.0);
    barrier();
    uint first_token = gl_WorkGroupID.x * M_TILE;
    uint first_row = gl_WorkGroupID.y * N_TILE;
    tensorLayoutNV<2, CLAMP> x_layout =
        createTensorLayoutNV(2, CLAMP);
    x_layout = setTensorLayoutDimensionNV(x_layout, M, K);
    x_layout = setTensorLayoutStrideNV(x_layout, DEPTH, 1);
    tensorLayoutNV<2, CLAMP> w_layout =
        createTensorLayoutNV(2, CLAMP);
    w_layout = setTensorLayoutBlockSizeNV(w_layout, 1, 16);
    w_layout = setTensorLayoutDimensionNV(w_layout, N, K);
    tensorLayoutNV<2, CLAMP> y_layout =
        createTensorLayoutNV(2, CLAMP);
    y_layout = setTensorLayoutDimensionNV(y_layout, M, N);
    tensorViewNV<2, false, 1, 0> transposed = createTensorViewNV(2, false, 1, 0);

    coopmat<float, gl_ScopeWorkgroup, M_TILE, N_TILE, gl_MatrixUseAccumulator> total =
        coopmat<float, gl_ScopeWorkgroup, M_TILE, N_TILE, gl_MatrixUseAccumulator>(0.0);
    for (uint start = 0u; start < K; start += K_TILE) {
        coopmat<float16_t, gl_ScopeWorkgroup, M_TILE, K_TILE, gl_MatrixUseA> a;
        coopmat<float16_t, gl_ScopeWorkgroup, K_TILE, N_TILE, gl_MatrixUseB> b;
        coopMatLoadTensorNV(
            a, x, 0, sliceTensorLayoutNV(x_layout, first_token, M_TILE, start, K_TILE));
        coopMatLoadTensorNV(
            b, w, 0, sliceTensorLayoutNV(w_layout, first_row, N_TILE, start, K_TILE), transposed,
            decoded);
        total = coopMatMulAdd(a, b, total);
    }
    total = total * 128.0 * tensor_scale;
    if (ACTIVATION != NVFP4_NONE) coopMatPerElementNV(total, total, finished);
    coopMatStoreTensorNV(
        total, y, 0, sliceTensorLayoutNV(y_layout, first_token, M_TILE, first_row, N_TILE));
}
