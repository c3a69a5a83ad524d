// 64-bit integers as two words, x the low and y the high one, two's complement: not every device
// has 64-bit integers.

uvec2 wide(int v) { return uvec2(uint(v), uint(v >> 31)); }

uvec2 wide_sum(uvec2 a, uvec2 b) {
    uint carry;
    uint low = uaddCarry(a.x, b.x, carry);
    return uvec2(low, a.y + b.y + carry);
}

uvec2 wide_product(int a, int b) {
    int high;
    int low;
    imulExtended(a, b, high, low);
    return uvec2(uint(low), uint(high));
}

// 2^s, s < 64.
uvec2 wide_power(uint s) { return s < 32u ? uvec2(1u << s, 0u) : uvec2(0u, 1u << (s - 32u)); }

// v / 2^s towards minus infinity, 1 <= s <= 63.
uvec2 wide_shifted(uvec2 v, uint s) {
    int high = int(v.y);
    if (s >= 32u) return uvec2(uint(high >> int(s - 32u)), uint(high >> 31));
    return uvec2((v.x >> s) | (v.y << (32u - s)), uint(high >> int(s)));
}

// The nearest INT32.
int wide_saturated(uvec2 v) {
    int low = int(v.x);
    int high = int(v.y);
    if (high == low >> 31) return low;
    return high < 0 ? -2147483647 - 1 : 2147483647;
}

// The high word of a 48-bit number, sign-extended.
uint wide_high48(uint high) { return uint(int(high << 16) >> 16); }

// TOSA's apply_scale: product / 2^shift, halves upwards; with `twice` (double rounding) a value that
// is shifted by more than 31 is rounded to the 31st place, away from 0, before. Shifts are 2 to 62.
int wide_scaled(uvec2 product, uint shift, bool twice) {
    shift = clamp(shift, 2u, 62u);
    uvec2 total = wide_sum(product, wide_power(shift - 1u));
    if (twice && shift > 31u) total = wide_sum(total, wide(int(product.y) < 0 ? -(1 << 30) : 1 << 30));
    return wide_saturated(wide_shifted(total, shift));
}
