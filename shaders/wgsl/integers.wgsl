// Four sums of integer products. With TWO_WORDS `low` and `high` are the halves of 64-bit sums, for
// INT48; otherwise `low` is the sum.

struct Sums { low: vec4<i32>, high: vec4<i32> }

fn plus(sums: Sums, term: vec4<i32>, two_words: bool) -> Sums {
    let low = sums.low + term;
    if (!two_words) { return Sums(low, sums.high); }
    let carry = select(
        vec4<i32>(0), vec4<i32>(1), bitcast<vec4<u32>>(low) < bitcast<vec4<u32>>(term));
    return Sums(low, sums.high + carry + (term >> vec4<u32>(31u)));
}

// The four bytes of a word, sign-extended.
fn four_bytes(word: u32) -> vec4<i32> {
    let shifted = vec4<u32>(word) << vec4<u32>(24u, 16u, 8u, 0u);
    return bitcast<vec4<i32>>(shifted) >> vec4<u32>(24u);
}

// The high word of a number of 48 bits.
fn high_48(high: i32) -> i32 { return (high << 16u) >> 16u; }

// low + bias as the two words of an INT48.
fn with_bias(low: i32, high: i32, bias_low: i32, bias_high: i32) -> vec2<i32> {
    let sum = low + bias_low;
    let carry = select(0, 1, bitcast<u32>(sum) < bitcast<u32>(low));
    return vec2<i32>(sum, high_48(high + bias_high + carry));
}
