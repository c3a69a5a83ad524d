// TOSA RESIZE, MODE NEAREST (1) or BILINEAR (2), of NHWC (docs/kernel-interface.md). An output
// position is y / n input rows with the integers y = oy * d + offset and n.

override WORKGROUP: u32 = 64;
override MODE: u32;
override TYPE: u32;
override Y_TYPE: u32;

struct Params {
    count: u32,
    ih: u32, iw: u32, c: u32, oh: u32, ow: u32,
    scale_y_n: u32, scale_y_d: u32, scale_x_n: u32, scale_x_d: u32,
    offset_y: u32, offset_x: u32,
    zero: u32,
}

@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(0) @binding(2) var<uniform> params: Params;

// Whole input steps in front of a position, and the remainder in 0..n-1.
struct Position { whole: i32, part: i32 }

fn position(out: u32, n: u32, d: u32, offset: u32) -> Position {
    let unit = i32(n);
    let along = i32(out) * i32(d) + bitcast<i32>(offset);
    var whole = along / unit;
    // Not `along % unit`: Vulkan leaves the remainder of a negative number undefined, and
    // NVIDIA's driver makes use of that.
    var part = along - whole * unit;
    // Both were rounded towards zero.
    if (part < 0) {
        whole -= 1;
        part += unit;
    }
    return Position(whole, part);
}

fn inside(at: i32, size: u32) -> u32 { return u32(min(max(at, 0), i32(size) - 1)); }

fn fetch(image: u32, row: i32, column: i32, channel: u32) -> u32 {
    let line = image * params.ih + inside(row, params.ih);
    let at = (line * params.iw + inside(column, params.iw)) * params.c + channel;
    return lane_bits(x[at / lanes_of(TYPE)], TYPE, at);
}

// The four neighbours, clamped to the image: upper left, upper right, lower left, lower right.
fn corners(image: u32, row: i32, column: i32, channel: u32) -> vec4<u32> {
    return vec4<u32>(
        fetch(image, row, column, channel),
        fetch(image, row, column + 1, channel),
        fetch(image, row + 1, column, channel),
        fetch(image, row + 1, column + 1, channel),
    );
}

fn mixed_float(lanes: vec4<u32>, dy: f32, dx: f32) -> f32 {
    let rest_y = r_sub(1.0, dy);
    let rest_x = r_sub(1.0, dx);
    var sum = r_mul(r_mul(widen(TYPE, lanes.x), rest_y), rest_x);
    sum = r_add(sum, r_mul(r_mul(widen(TYPE, lanes.y), rest_y), dx));
    sum = r_add(sum, r_mul(r_mul(widen(TYPE, lanes.z), dy), rest_x));
    return r_add(sum, r_mul(r_mul(widen(TYPE, lanes.w), dy), dx));
}

fn mixed_int(lanes: vec4<u32>, part_y: i32, part_x: i32) -> i32 {
    let unit_x = i32(params.scale_x_n);
    let upper = widen_int(TYPE, lanes.x) * (unit_x - part_x) + widen_int(TYPE, lanes.y) * part_x;
    let lower = widen_int(TYPE, lanes.z) * (unit_x - part_x) + widen_int(TYPE, lanes.w) * part_x;
    return upper * (i32(params.scale_y_n) - part_y) + lower * part_y;
}

// The sum of all four, where INT32 is too small: each row's part fits, rows by `part_y` do not.
fn mixed_wide(lanes: vec4<u32>, part_y: i32, part_x: i32) -> vec2<u32> {
    let unit_x = i32(params.scale_x_n);
    let upper = widen_int(TYPE, lanes.x) * (unit_x - part_x) + widen_int(TYPE, lanes.y) * part_x;
    let lower = widen_int(TYPE, lanes.z) * (unit_x - part_x) + widen_int(TYPE, lanes.w) * part_x;
    return added(
        complement(product(upper, i32(params.scale_y_n) - part_y)),
        complement(product(lower, part_y)));
}

// The corners round element `index`, and the remainders in y and x.
struct Cell { lanes: vec4<u32>, part_y: i32, part_x: i32 }

fn cell_of(index: u32) -> Cell {
    let column = index / params.c % params.ow;
    let row = index / (params.c * params.ow) % params.oh;
    let image = index / (params.c * params.ow) / params.oh;
    let py = position(row, params.scale_y_n, params.scale_y_d, params.offset_y);
    let px = position(column, params.scale_x_n, params.scale_x_d, params.offset_x);
    return Cell(corners(image, py.whole, px.whole, index % params.c), py.part, px.part);
}

fn lane_of(index: u32) -> u32 {
    let channel = index % params.c;
    let column = index / params.c % params.ow;
    let row = index / (params.c * params.ow) % params.oh;
    let image = index / (params.c * params.ow) / params.oh;
    let py = position(row, params.scale_y_n, params.scale_y_d, params.offset_y);
    let px = position(column, params.scale_x_n, params.scale_x_d, params.offset_x);
    if (MODE == 1u) {
        let down = select(0, 1, py.part >= i32(params.scale_y_n) - py.part);
        let right = select(0, 1, px.part >= i32(params.scale_x_n) - px.part);
        return fetch(image, py.whole + down, px.whole + right, channel);
    }
    let lanes = corners(image, py.whole, px.whole, channel);
    if (!is_float(TYPE)) { return narrow_int(Y_TYPE, mixed_int(lanes, py.part, px.part)); }
    let dy = strict_divide(f32(py.part), f32(params.scale_y_n));
    let dx = strict_divide(f32(px.part), f32(params.scale_x_n));
    let value = mixed_float(lanes, dy, dx);
    if (is_nan(value)) { return narrow(Y_TYPE, nan_value()); }
    return narrow(Y_TYPE, value);
}

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * WORKGROUP + local;
    if (Y_TYPE == INT48) {
        if (i >= params.count) { return; }
        let cell = cell_of(i);
        let v = mixed_wide(cell.lanes, cell.part_y, cell.part_x);
        y[2u * i] = v.x;
        y[2u * i + 1u] = v.y;
        return;
    }
    store_word(i, Y_TYPE);
}
