// MATMUL of FP32 (docs/kernel-interface.md): one invocation owns 8 rows by 8 columns.
//
// Rows of b are `row` vectors. The sum over the inner dimension goes up from +0, each product
// and each sum fenced on its own. With PART a dispatch has a part of it, from c_first up to c_last,
// and goes on from the sums in y.

override WORKGROUP: u32 = 64;
override FOURS: u32;
override PART: u32;

struct Params {
    count: u32, columns: u32, tiles: u32,
    h: u32, c: u32, w: u32, row: u32,
    c_first: u32, c_last: u32,
    zero: u32,
}

@group(0) @binding(0) var<storage, read_write> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> b: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<uniform> params: Params;

fn fence4(v: vec4<f32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(v) ^ vec4<u32>(params.zero));
}

fn step4(sum: vec4<f32>, v: f32, row: vec4<f32>) -> vec4<f32> {
    return fence4(sum + fence4(v * row));
}

// Row r of the matrix, or the last one again: what it gives is not stored.
fn row_start(r: u32) -> u32 { return min(r, params.h - 1u) * params.c; }

fn store4(to: u32, column: u32, v: vec4<f32>) {
    if (column < params.w) { y[to] = v.x; }
    if (column + 1u < params.w) { y[to + 1u] = v.y; }
    if (column + 2u < params.w) { y[to + 2u] = v.z; }
    if (column + 3u < params.w) { y[to + 3u] = v.w; }
}

// Four sums of row r that another dispatch left; 0 where there are none.
fn begun(n: u32, r: u32, column: u32) -> vec4<f32> {
    var v = vec4<f32>();
    if (PART == 0u || params.c_first == 0u || r >= params.h) { return v; }
    let at = (n * params.h + r) * params.w + column;
    if (column < params.w) { v.x = y[at]; }
    if (column + 1u < params.w) { v.y = y[at + 1u]; }
    if (column + 2u < params.w) { v.z = y[at + 2u]; }
    if (column + 3u < params.w) { v.w = y[at + 3u]; }
    return v;
}

fn store_row(n: u32, r: u32, column: u32, left: vec4<f32>, right: vec4<f32>) {
    if (r >= params.h) { return; }
    let to = (n * params.h + r) * params.w + column;
    store4(to, column, left);
    store4(to + 4u, column + 4u, right);
}

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = linear_invocation(group, groups, WORKGROUP, lane);
    if (i >= params.count) { return; }
    let block = i % params.columns;
    let tile = i / params.columns;
    let n = tile / params.tiles;
    let top = (tile % params.tiles) * 8u;
    let matrix = n * params.h * params.c;
    let r0 = matrix + row_start(top);
    let r1 = matrix + row_start(top + 1u);
    let r2 = matrix + row_start(top + 2u);
    let r3 = matrix + row_start(top + 3u);
    let r4 = matrix + row_start(top + 4u);
    let r5 = matrix + row_start(top + 5u);
    let r6 = matrix + row_start(top + 6u);
    let r7 = matrix + row_start(top + 7u);

    let column = 8u * block;
    var l0 = begun(n, top, column);
    var l1 = begun(n, top + 1u, column);
    var l2 = begun(n, top + 2u, column);
    var l3 = begun(n, top + 3u, column);
    var l4 = begun(n, top + 4u, column);
    var l5 = begun(n, top + 5u, column);
    var l6 = begun(n, top + 6u, column);
    var l7 = begun(n, top + 7u, column);
    var h0 = begun(n, top, column + 4u);
    var h1 = begun(n, top + 1u, column + 4u);
    var h2 = begun(n, top + 2u, column + 4u);
    var h3 = begun(n, top + 3u, column + 4u);
    var h4 = begun(n, top + 4u, column + 4u);
    var h5 = begun(n, top + 5u, column + 4u);
    var h6 = begun(n, top + 6u, column + 4u);
    var h7 = begun(n, top + 7u, column + 4u);
    var at = (n * params.c + params.c_first) * params.row + 2u * block;
    // A block at the right edge may have one vector only.
    let second = select(0u, 1u, 2u * block + 1u < params.row);
    for (var k = params.c_first; k < params.c_last; k++) {
        let left = b[at];
        let right = b[at + second];
        at += params.row;
        let v0 = a[r0 + k];
        l0 = step4(l0, v0, left);
        h0 = step4(h0, v0, right);
        let v1 = a[r1 + k];
        l1 = step4(l1, v1, left);
        h1 = step4(h1, v1, right);
        let v2 = a[r2 + k];
        l2 = step4(l2, v2, left);
        h2 = step4(h2, v2, right);
        let v3 = a[r3 + k];
        l3 = step4(l3, v3, left);
        h3 = step4(h3, v3, right);
        let v4 = a[r4 + k];
        l4 = step4(l4, v4, left);
        h4 = step4(h4, v4, right);
        let v5 = a[r5 + k];
        l5 = step4(l5, v5, left);
        h5 = step4(h5, v5, right);
        let v6 = a[r6 + k];
        l6 = step4(l6, v6, left);
        h6 = step4(h6, v6, right);
        let v7 = a[r7 + k];
        l7 = step4(l7, v7, left);
        h7 = step4(h7, v7, right);
    }
    store_row(n, top, column, l0, h0);
    store_row(n, top + 1u, column, l1, h1);
    store_row(n, top + 2u, column, l2, h2);
    store_row(n, top + 3u, column, l3, h3);
    store_row(n, top + 4u, column, l4, h4);
    store_row(n, top + 5u, column, l5, h5);
    store_row(n, top + 6u, column, l6, h6);
    store_row(n, top + 7u, column, l7, h7);
}
