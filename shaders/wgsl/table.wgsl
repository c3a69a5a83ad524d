// TABLE (docs/kernel-interface.md): an entry for each INT8, 513 entries to interpolate for INT16.

override WORKGROUP: u32 = 64;
override TYPE: u32;

struct Params { count: u32, zero: u32 }

@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> table: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;
@group(0) @binding(3) var<uniform> params: Params;

fn at_table(index: i32) -> u32 {
    let place_there = bitcast<u32>(index);
    return lane_bits(table[place_there / lanes_of(TYPE)], TYPE, place_there);
}

fn interpolated(v: i32) -> i32 {
    let step = (v >> 7u) + 256;
    let beyond = v - ((v >> 7u) << 7u);
    let lower = widen_int(INT16, at_table(step));
    let upper = widen_int(INT16, at_table(step + 1));
    return lower * 128 + (upper - lower) * beyond;
}

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * WORKGROUP + local;
    if (TYPE == INT16) {
        if (i >= params.count) { return; }
        let v = widen_int(INT16, lane_bits(x[i >> 1u], INT16, i));
        y[i] = bitcast<u32>(interpolated(v));
        return;
    }
    let first = i * 4u;
    // The second test is for a product that does not fit.
    if (first >= params.count || i > params.count) { return; }
    var word = 0u;
    var keep = 0u;
    for (var k = 0u; k < 4u; k++) {
        if (k < params.count - first) {
            word |= place(INT8, at_table(widen_int(INT8, lane_bits(x[i], INT8, k)) + 128), k);
        } else {
            keep |= place(INT8, 0xffu, k);
        }
    }
    if (keep != 0u) { word |= y[i] & keep; }
    y[i] = word;
}
