// y[n, w, c] = x[n, indices[n, w], c] of raw lanes; an index outside x gives 0.

override WORKGROUP: u32 = 64;
override TYPE: u32;

struct Params { count: u32, n: u32, k: u32, w: u32, c: u32, zero: u32 }

@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> indices: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;
@group(0) @binding(3) var<uniform> params: Params;

fn lane_of(element: u32) -> u32 {
    let entry = element / params.c;
    let index = bitcast<i32>(indices[entry]);
    if (index < 0 || index >= bitcast<i32>(params.k)) { return 0u; }
    let row = entry / params.w * params.k + bitcast<u32>(index);
    let at = row * params.c + element % params.c;
    let lane = lane_bits(x[at / lanes_of(TYPE)], TYPE, at);
    if (TYPE == BOOL && lane > 0u) { return 1u; }
    return lane;
}

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * WORKGROUP + local;
    store_word(i, TYPE);
}
