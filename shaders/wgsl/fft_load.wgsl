// Joins real and imaginary parts to complex numbers, a row for each invocation, and collects what is
// not finite: special[row] entries from special[count + row * width] on. An entry has the column from
// bit 4 up, the kind of the real part in bits 0-1 and that of the imaginary part in bits 2-3.

override WORKGROUP: u32 = 64;
override REAL: u32;

struct Params { count: u32, width: u32, zero: u32 }

@group(0) @binding(0) var<storage, read_write> re: array<u32>;
@group(0) @binding(1) var<storage, read_write> im: array<u32>;
@group(0) @binding(2) var<storage, read_write> z: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read_write> special: array<u32>;
@group(0) @binding(4) var<uniform> params: Params;

// Finite 0, plus infinity 1, minus infinity 2, NaN 3.
fn kind(bits: u32) -> u32 {
    switch (bits) {
        case 0x7f800000u: { return 1u; }
        case 0xff800000u: { return 2u; }
        default: { return select(0u, 3u, (bits & 0x7f800000u) == 0x7f800000u); }
    }
}

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = linear_invocation(group, groups, WORKGROUP, lane);
    if (row >= params.count) { return; }
    let start = row * params.width;
    var end = params.count + start;
    for (var column = 0u; column < params.width; column++) {
        var value = vec2<u32>(re[start + column], 0u);
        if (REAL == 0u) { value.y = im[start + column]; }
        z[start + column] = value;
        let kinds = kind(value.x) + 4u * kind(value.y);
        if (kinds > 0u) {
            special[end] = 16u * column + kinds;
            end++;
        }
    }
    special[row] = end - params.count - start;
}
