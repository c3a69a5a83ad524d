// rows[n, indices[n, w]] = w + 1: which row of its input SCATTER writes to a place, where rows were
// 0 before. Of several the last one wins, so that the result is the same everywhere (TOSA leaves it
// open); an index outside 0..k-1 writes nothing.
#version 450
#extension GL_GOOGLE_include_directive : require

layout(local_size_x_id = 0) in;

layout(set = 0, binding = 0) readonly buffer Indices { uint indices[]; };
layout(set = 0, binding = 1) buffer Rows { uint rows[]; };

layout(push_constant) uniform Params {
    uint count;
    uint k;
    uint w;
};

#include "linear.glsl"

void main() {
    uint i = invocation();
    if (i >= count) return;
    uint index = indices[i];
    // A negative index is a large number here.
    if (index >= k) return;
    uint batch = i / w;
    atomicMax(rows[batch * k + index], i - batch * w + 1u);
}
