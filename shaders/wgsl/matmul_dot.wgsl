// MATMUL of INT8 by packed dot products (docs/kernel-interface.md): one invocation owns 8 rows by 4
// columns.
//
// Rows of b are `row` words of four columns. `zeros` is [zero point of x, of b]; they are taken off at
// the end. SUMS & 1: that of x may be other than 0; SUMS & 2: that of b.

override WORKGROUP: u32 = 64;
override FOURS: u32;
override SUMS: u32;

const ONES: u32 = 0x01010101u;

// First element of row r, or of the last one again: what it gives is not stored.
fn row_start(n: u32, r: u32) -> u32 {
    return (n * params.h + min(r, params.h - 1u)) * params.c;
}

// Four elements of x from `at` on; `wanted` masks those of the row.
fn four_of(at: u32, wanted: u32) -> u32 {
    let word = x[at / 4u];
    if (FOURS != 0u) { return word; }
    let lane = at % 4u;
    if (lane == 0u) { return word & wanted; }
    let last = arrayLength(&x) - 1u;
    return ((word >> (8u * lane)) | (x[min(at / 4u + 1u, last)] << (32u - 8u * lane))) & wanted;
}

// Word of four columns at step k of c; zeros beyond the last.
fn line_of(n: u32, k: u32, column: u32) -> u32 {
    if (FOURS == 0u && k >= params.c) { return 0u; }
    return b[(n * params.c + k) * params.row + column];
}

// Byte `lane` of four words.
fn column_of(lines: vec4<u32>, lane: u32) -> u32 {
    let bytes = (lines >> vec4<u32>(8u * lane)) & vec4<u32>(0xffu);
    return bytes.x | (bytes.y << 8u) | (bytes.z << 16u) | (bytes.w << 24u);
}

fn products(a: u32, columns: vec4<u32>) -> vec4<i32> {
    return vec4<i32>(
        dot4I8Packed(a, columns.x), dot4I8Packed(a, columns.y),
        dot4I8Packed(a, columns.z), dot4I8Packed(a, columns.w));
}

fn store(to: u32, column: u32, value: i32) {
    if (column >= params.w) { return; }
    // Another dispatch may have summed up to c_first.
    if (params.c_first > 0u) {
        y[to] += value;
    } else {
        y[to] = value;
    }
}

fn store_row(n: u32, r: u32, column: u32, sums: vec4<i32>) {
    if (r >= params.h) { return; }
    let to = (n * params.h + r) * params.w + column;
    store(to, column, sums.x);
    store(to + 1u, column + 1u, sums.y);
    store(to + 2u, column + 2u, sums.z);
    store(to + 3u, column + 3u, sums.w);
}

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = linear_invocation(group, groups, WORKGROUP, lane);
    if (i >= params.count) { return; }
    let column = i % params.row;
    let tile = i / params.row;
    let n = tile / params.tiles;
    let top = (tile % params.tiles) * 8u;
    let r0 = row_start(n, top);
    let r1 = row_start(n, top + 1u);
    let r2 = row_start(n, top + 2u);
    let r3 = row_start(n, top + 3u);
    let r4 = row_start(n, top + 4u);
    let r5 = row_start(n, top + 5u);
    let r6 = row_start(n, top + 6u);
    let r7 = row_start(n, top + 7u);
    var s0 = vec4<i32>();
    var s1 = vec4<i32>();
    var s2 = vec4<i32>();
    var s3 = vec4<i32>();
    var s4 = vec4<i32>();
    var s5 = vec4<i32>();
    var s6 = vec4<i32>();
    var s7 = vec4<i32>();
    var of_b = vec4<i32>();
    var of_top = vec4<i32>();
    var of_bottom = vec4<i32>();
    for (var k = params.c_first; k < params.c_last; k += 4u) {
        let lines = vec4<u32>(
            line_of(n, k, column), line_of(n, k + 1u, column),
            line_of(n, k + 2u, column), line_of(n, k + 3u, column));
        let right = vec4<u32>(
            column_of(lines, 0u), column_of(lines, 1u), column_of(lines, 2u), column_of(lines, 3u));
        let wanted = 0xffffffffu >> (32u - 8u * min(params.c - k, 4u));
        let v0 = four_of(r0 + k, wanted);
        let v1 = four_of(r1 + k, wanted);
        let v2 = four_of(r2 + k, wanted);
        let v3 = four_of(r3 + k, wanted);
        let v4 = four_of(r4 + k, wanted);
        let v5 = four_of(r5 + k, wanted);
        let v6 = four_of(r6 + k, wanted);
        let v7 = four_of(r7 + k, wanted);
        s0 += products(v0, right);
        s1 += products(v1, right);
        s2 += products(v2, right);
        s3 += products(v3, right);
        s4 += products(v4, right);
        s5 += products(v5, right);
        s6 += products(v6, right);
        s7 += products(v7, right);
        if ((SUMS & 1u) != 0u) { of_b += products(ONES, right); }
        if ((SUMS & 2u) != 0u) {
            of_top += products(ONES, vec4<u32>(v0, v1, v2, v3));
            of_bottom += products(ONES, vec4<u32>(v4, v5, v6, v7));
        }
    }
    // x_zero * (sum of b - depth * b_zero) for every row, b_zero * sum of x for its own.
    let off = (of_b - i32(params.c_last - params.c_first) * zeros[1]) * zeros[0];
    let top_off = of_top * zeros[1];
    let bottom_off = of_bottom * zeros[1];
    store_row(n, top, 4u * column, s0 - off - top_off.x);
    store_row(n, top + 1u, 4u * column, s1 - off - top_off.y);
    store_row(n, top + 2u, 4u * column, s2 - off - top_off.z);
    store_row(n, top + 3u, 4u * column, s3 - off - top_off.w);
    store_row(n, top + 4u, 4u * column, s4 - off - bottom_off.x);
    store_row(n, top + 5u, 4u * column, s5 - off - bottom_off.y);
    store_row(n, top + 6u, 4u * column, s6 - off - bottom_off.z);
    store_row(n, top + 7u, 4u * column, s7 - off - bottom_off.w);
}
