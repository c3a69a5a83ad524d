// FP32 convolutions: operands, and a step of their sums. The kernel has Params and SKIP.

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> w: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> bias: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<uniform> params: Params;

fn fence4(v: vec4<f32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(v) ^ vec4<u32>(params.zero));
}

// sum + v * row, each step rounded. With SKIP the sum of an absent pixel stays.
fn step4(sum: vec4<f32>, v: f32, row: vec4<f32>, present: bool) -> vec4<f32> {
    let next = fence4(sum + fence4(v * row));
    if (SKIP != 0u) { return select(sum, next, present); }
    return next;
}
