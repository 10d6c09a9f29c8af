// CRC-32C: by the instruction of SSE 4.2 where the processor has it, else by tables of 8 bytes.

#include "lane.h"
#include <string.h>

#define POLYNOMIAL 0x82f63b78u  // of Castagnoli, bits reversed

static uint32_t tables[8][256];

uint32_t crc32c_by_tables(const uint8_t *begin, const uint8_t *end) {
    uint32_t crc = 0xffffffff;
    for (; end - begin >= 8; begin += 8) {
        crc ^= begin[0] | begin[1] << 8 | begin[2] << 16 | (uint32_t)begin[3] << 24;
        crc = tables[7][crc & 0xff] ^ tables[6][crc >> 8 & 0xff] ^ tables[5][crc >> 16 & 0xff] ^
              tables[4][crc >> 24] ^ tables[3][begin[4]] ^ tables[2][begin[5]] ^
              tables[1][begin[6]] ^ tables[0][begin[7]];
    }
    for (; begin < end; begin++) crc = crc >> 8 ^ tables[0][(crc ^ *begin) & 0xff];
    return ~crc;
}

#if defined(__x86_64__) && defined(__GNUC__)

#define BLOCK_BYTES 512

static bool has_instruction;
static uint32_t behind_zeros[4][256];  // the CRC of each byte of a CRC behind BLOCK_BYTES zeros

static inline uint64_t get_word(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

static inline uint64_t shifted(uint64_t crc) {
    return behind_zeros[0][crc & 0xff] ^ behind_zeros[1][crc >> 8 & 0xff] ^
           behind_zeros[2][crc >> 16 & 0xff] ^ behind_zeros[3][crc >> 24 & 0xff];
}

__attribute__((target("sse4.2"))) static void fill_behind_zeros(void) {
    for (int place = 0; place < 4; place++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint64_t crc = byte << 8 * place;
            for (int i = 0; i < BLOCK_BYTES; i += 8) crc = __builtin_ia32_crc32di(crc, 0);
            behind_zeros[place][byte] = (uint32_t)crc;
        }
}

// The instruction takes three cycles, but one of them can begin in each: so three blocks at once.
__attribute__((target("sse4.2"))) static uint32_t by_instruction(
    const uint8_t *begin, const uint8_t *end) {
    uint64_t crc = 0xffffffff;
    for (; end - begin >= 3 * BLOCK_BYTES; begin += 2 * BLOCK_BYTES) {
        uint64_t second = 0, third = 0;
        for (const uint8_t *stop = begin + BLOCK_BYTES; begin < stop; begin += 8) {
            crc = __builtin_ia32_crc32di(crc, get_word(begin));
            second = __builtin_ia32_crc32di(second, get_word(begin + BLOCK_BYTES));
            third = __builtin_ia32_crc32di(third, get_word(begin + 2 * BLOCK_BYTES));
        }
        crc = shifted(shifted(crc) ^ second) ^ third;
    }
    for (; end - begin >= 8; begin += 8) crc = __builtin_ia32_crc32di(crc, get_word(begin));
    for (; begin < end; begin++) crc = __builtin_ia32_crc32qi((uint32_t)crc, *begin);
    return ~(uint32_t)crc;
}

static void prepare_instruction(void) {
    has_instruction = __builtin_cpu_supports("sse4.2") != 0;
    if (has_instruction) fill_behind_zeros();
}

uint32_t crc32c(const uint8_t *begin, const uint8_t *end) {
    return has_instruction ? by_instruction(begin, end) : crc32c_by_tables(begin, end);
}

#else

static void prepare_instruction(void) {}

uint32_t crc32c(const uint8_t *begin, const uint8_t *end) { return crc32c_by_tables(begin, end); }

#endif

void prepare_crc32c(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ POLYNOMIAL : crc >> 1;
        tables[0][byte] = crc;
    }
    for (int table = 1; table < 8; table++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = tables[table - 1][byte];
            tables[table][byte] = before >> 8 ^ tables[0][before & 0xff];
        }
    prepare_instruction();
}
