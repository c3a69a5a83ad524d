// MATMUL of integers (docs/kernel-interface.md): one invocation owns 8 rows by 4 columns.
//
// Rows of b are `row` groups of four elements. `zeros` is [zero point of x, of b].

override WORKGROUP: u32 = 64;
override X_TYPE: u32;
override FOURS: u32;

fn two_words() -> bool { return X_TYPE == INT16; }

// Row r of the matrix, or the last one again: what it gives is not stored.
fn row_start(r: u32) -> u32 { return min(r, params.h - 1u) * params.c; }

fn value_at(e: u32) -> i32 {
    return widen_int(X_TYPE, lane_bits(x[e / lanes_of(X_TYPE)], X_TYPE, e)) - zeros[0];
}

fn group_of_b(at: u32) -> vec4<i32> {
    if (!two_words()) { return four_bytes(b[at]); }
    let pairs = vec4<u32>(b[2u * at] << 16u, b[2u * at], b[2u * at + 1u] << 16u, b[2u * at + 1u]);
    return bitcast<vec4<i32>>(pairs) >> vec4<u32>(16u);
}

fn store(to: u32, column: u32, low: i32, high: i32) {
    if (column >= params.w) { return; }
    // Another dispatch may have summed up to c_first.
    let continues = params.c_first > 0u;
    if (two_words()) {
        var before = vec2<i32>();
        if (continues) { before = vec2<i32>(y[to * 2u], y[to * 2u + 1u]); }
        let v = with_bias(low, high, before.x, before.y);
        y[to * 2u] = v.x;
        y[to * 2u + 1u] = v.y;
    } else if (continues) {
        y[to] += low;
    } else {
        y[to] = low;
    }
}

fn store_row(n: u32, r: u32, column: u32, sums: Sums) {
    if (r >= params.h) { return; }
    let to = (n * params.h + r) * params.w + column;
    store(to, column, sums.low.x, sums.high.x);
    store(to + 1u, column + 1u, sums.low.y, sums.high.y);
    store(to + 2u, column + 2u, sums.low.z, sums.high.z);
    store(to + 3u, column + 3u, sums.low.w, sums.high.w);
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
    let matrix = n * params.h * params.c;
    let b_zero = vec4<i32>(zeros[1]);
    let r0 = matrix + row_start(top);
    let r1 = matrix + row_start(top + 1u);
    let r2 = matrix + row_start(top + 2u);
    let r3 = matrix + row_start(top + 3u);
    let r4 = matrix + row_start(top + 4u);
    let r5 = matrix + row_start(top + 5u);
    let r6 = matrix + row_start(top + 6u);
    let r7 = matrix + row_start(top + 7u);
    var s0 = Sums();
    var s1 = Sums();
    var s2 = Sums();
    var s3 = Sums();
    var s4 = Sums();
    var s5 = Sums();
    var s6 = Sums();
    var s7 = Sums();
    var at = (n * params.c + params.c_first) * params.row + column;
    for (var k = params.c_first; k < params.c_last; k++) {
        let right = group_of_b(at) - b_zero;
        at += params.row;
        s0 = plus(s0, value_at(r0 + k) * right, two_words());
        s1 = plus(s1, value_at(r1 + k) * right, two_words());
        s2 = plus(s2, value_at(r2 + k) * right, two_words());
        s3 = plus(s3, value_at(r3 + k) * right, two_words());
        s4 = plus(s4, value_at(r4 + k) * right, two_words());
        s5 = plus(s5, value_at(r5 + k) * right, two_words());
        s6 = plus(s6, value_at(r6 + k) * right, two_words());
        s7 = plus(s7, value_at(r7 + k) * right, two_words());
    }
    store_row(n, top, 4u * column, s0);
    store_row(n, top + 1u, 4u * column, s1);
    store_row(n, top + 2u, 4u * column, s2);
    store_row(n, top + 3u, 4u * column, s3);
    store_row(n, top + 4u, 4u * column, s4);
    store_row(n, top + 5u, 4u * column, s5);
    store_row(n, top + 6u, 4u * column, s6);
    store_row(n, top + 7u, 4u * column, s7);
}
