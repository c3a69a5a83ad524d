// Sums of integer products, four side by side: INT32 for INT8 operands, INT48 in two words for
// INT16 ones. The kernel that includes this has X_TYPE and x_words.

const bool TWO_WORDS = X_TYPE == INT16;

struct Sums {
    ivec4 low;
    ivec4 high;
};

// Wraps around, as TOSA's accumulators do.
void add(inout Sums sums, ivec4 term) {
    if (!TWO_WORDS) {
        sums.low += term;
        return;
    }
    uvec4 carry;
    sums.low = ivec4(uaddCarry(uvec4(sums.low), uvec4(term), carry));
    sums.high += ivec4(carry) + (term >> 31);
}

// The four bytes of a word.
ivec4 bytes_of(uint word) {
    int w = int(word);
    return ivec4(w << 24, w << 16, w << 8, w) >> 24;
}

// Element `at` of x.
int x_value(uint at) { return widen_int(X_TYPE, lane_bits(x_words[at / lanes_of(X_TYPE)], X_TYPE, at)); }

// Elements 4 * at to 4 * at + 3 of x.
ivec4 x_values(uint at) {
    if (X_TYPE == INT8) return bytes_of(x_words[at]);
    ivec2 w = ivec2(x_words[2u * at], x_words[2u * at + 1u]);
    return ivec4(w.x << 16, w.x, w.y << 16, w.y) >> 16;
}
