// Ends a product that a fast NVFP4 kernel made without: row scales, bias, activation, residual
// (docs/nvfp4.md). y[t, r] = act(sums[t, r] * tensor_scale[r or 0] + bias[r]) + residual[t, r].
#version 450
#extension GL_GOOGLE_include_directive : require
#include "float_controls.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint ACTIVATION = 0u;

layout(push_constant) uniform Params {
    uint count;
    uint n;
    uint t_row;
    uint extras;
};

layout(set = 0, binding = 0) readonly buffer Sums { float sums[]; };
layout(set = 0, binding = 1) readonly buffer TensorScale { float tensor_scale[]; };
layout(set = 0, binding = 2) readonly buffer Bias { float bias[]; };
layout(set = 0, binding = 3) readonly buffer Residual { float residual[]; };
layout(set = 0, binding = 4) writeonly buffer Y { float y[]; };

#include "math.glsl"
#include "linear.glsl"
#include "nvfp4_strict.glsl"

void main() {
    uint i = invocation();
    if (i >= count) return;
    uint row = i % n;
    float b = (extras & HAS_BIAS) != 0u ? bias[row] : 0.0;
    float r = (extras & HAS_RESIDUAL) != 0u ? residual[i] : 0.0;
    y[i] = finished(sums[i], tensor_scale[row * t_row], extras, b, r);
}
