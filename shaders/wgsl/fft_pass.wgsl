// A pass of the Stockham transform, radix 2: invocation j of a line takes points j and j + n/2 and
// leaves their sum and their turned difference s apart. Lines are interleaved: `inner` of them
// lie side by side, `pitch` complex numbers from one point to the next.

override WORKGROUP: u32 = 64;

struct Params { count: u32, half_n: u32, s: u32, inner: u32, pitch: u32, zero: u32 }

@group(0) @binding(0) var<storage, read_write> x: array<vec2<f32>>;
@group(0) @binding(1) var<storage, read_write> turns: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read_write> y: array<vec2<f32>>;
@group(0) @binding(3) var<uniform> params: Params;

fn fence2(v: vec2<f32>) -> vec2<f32> {
    return bitcast<vec2<f32>>(bitcast<vec2<u32>>(v) ^ vec2<u32>(params.zero));
}

fn complex_product(p: vec2<f32>, q: vec2<f32>) -> vec2<f32> {
    let straight = fence2(p * q);
    let crossed = fence2(p * q.yx);
    return fence2(vec2<f32>(straight.x - straight.y, crossed.x + crossed.y));
}

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = linear_invocation(group, groups, WORKGROUP, lane);
    if (i >= params.count) { return; }
    let place = i % params.inner;
    let point = i / params.inner % params.half_n;
    let line = i / params.inner / params.half_n;
    let start = 2u * params.half_n * params.pitch * line + place;
    let low = x[start + params.pitch * point];
    let high = x[start + params.pitch * (point + params.half_n)];
    let offset = point % params.s;
    let stage = point - offset;
    let first = start + params.pitch * (2u * stage + offset);
    y[first] = fence2(low + high);
    y[first + params.pitch * params.s] = complex_product(fence2(low - high), turns[stage]);
}
