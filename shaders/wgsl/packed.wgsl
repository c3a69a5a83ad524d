// Whole destination words. The kernel has `lane_of`, which makes the lane of an element of y, and as
// many elements as params.count; lanes beyond them are kept.

fn store_word(i: u32, dtype: u32) {
    let lanes = lanes_of(dtype);
    if (i >= params.count / lanes + min(params.count % lanes, 1u)) { return; }
    var word = 0u;
    var keep = 0u;
    for (var k = 0u; k < lanes; k++) {
        let e = i * lanes + k;
        if (e < params.count) {
            word |= place(dtype, lane_of(e), k);
        } else {
            keep |= place(dtype, lane_mask(dtype), k);
        }
    }
    if (keep != 0u) { word |= y[i] & keep; }
    y[i] = word;
}
