// CRC-32C: by the instruction of SSE 4.2 where the processor has it, else by tables of 8 bytes.

#include "lane.h"
#include <string.h>

#define POLYNOMIAL 0x82f63b78u  // of Castagnoli, bits reversed

static uint32_t tables[8][256];

static void fill_tables(void) {
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
}

uint32_t crc32c_by_tables(const uint8_t *begin, const uint8_t *end) {
    if (tables[0][1] == 0) fill_tables();  // writes the same values whoever is first
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

__attribute__((target("sse4.2"))) static uint32_t by_instruction(
    const uint8_t *begin, const uint8_t *end) {
    uint64_t crc = 0xffffffff;
    for (; end - begin >= 8; begin += 8) {
        uint64_t word;
        memcpy(&word, begin, sizeof word);
        crc = __builtin_ia32_crc32di(crc, word);
    }
    for (; begin < end; begin++) crc = __builtin_ia32_crc32qi((uint32_t)crc, *begin);
    return ~(uint32_t)crc;
}

uint32_t crc32c(const uint8_t *begin, const uint8_t *end) {
    static int has_instruction = -1;
    if (has_instruction < 0) has_instruction = __builtin_cpu_supports("sse4.2") != 0;
    return has_instruction ? by_instruction(begin, end) : crc32c_by_tables(begin, end);
}

#else

uint32_t crc32c(const uint8_t *begin, const uint8_t *end) { return crc32c_by_tables(begin, end); }

#endif
