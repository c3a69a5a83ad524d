#version 460
// y[i] = a[i] * FACTOR + b[i] + bias, on words; a linear kernel for the backend's own tests.
#extension GL_EXT_spirv_intrinsics : require
spirv_execution_mode(extensions = ["SPV_KHR_float_controls"], capabilities = [4466], 4461, 32);

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint FACTOR = 1u;
layout(set = 0, binding = 0) buffer A { uint a_words[]; };
layout(set = 0, binding = 1) buffer B { uint b_words[]; };
layout(set = 0, binding = 2) buffer Y { uint y_words[]; };
layout(push_constant) uniform Params { uint count; uint bias; };

void main() {
    uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uint i = group * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    if (i >= count) {
        return;
    }
    y_words[i] = a_words[i] * FACTOR + b_words[i] + bias;
}
