// The data part of SCATTER: y is x, but for the places that `rows` gives to a row of `input`
// (its number plus one). Raw lanes.

override WORKGROUP: u32 = 64;
override TYPE: u32;

struct Params { count: u32, k: u32, w: u32, c: u32, zero: u32 }

@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> rows: array<u32>;
@group(0) @binding(2) var<storage, read_write> input: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<u32>;
@group(0) @binding(4) var<uniform> params: Params;

fn lane_of(element: u32) -> u32 {
    let channel = element % params.c;
    let target_row = element / params.c;
    let batch = target_row / params.k;
    let chosen = rows[target_row];
    if (chosen > 0u) {
        let at = (batch * params.w + (chosen - 1u)) * params.c + channel;
        return lane_bits(input[at / lanes_of(TYPE)], TYPE, at);
    }
    return lane_bits(x[element / lanes_of(TYPE)], TYPE, element);
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
