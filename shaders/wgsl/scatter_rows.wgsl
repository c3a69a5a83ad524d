// Notes for SCATTER which input row goes to a place: its number plus one, 0 for none. The highest
// number stays; indices outside 0..k-1 are passed over.

override WORKGROUP: u32 = 64;

struct Params { count: u32, k: u32, w: u32, zero: u32 }

@group(0) @binding(0) var<storage, read_write> indices: array<i32>;
@group(0) @binding(1) var<storage, read_write> rows: array<atomic<u32>>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = linear_invocation(group, groups, WORKGROUP, lane);
    if (i < params.count) {
        let to = indices[i];
        if (to >= 0 && u32(to) < params.k) {
            atomicMax(&rows[i / params.w * params.k + u32(to)], i % params.w + 1u);
        }
    }
}
