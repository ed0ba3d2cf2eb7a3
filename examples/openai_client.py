"""An application behind alimark's endpoint: it writes with the official OpenAI client, and the text is marked.

    export ALIMARK_URL=http://127.0.0.1:8765 ALIMARK_GENERATE_TOKEN=... ALIMARK_DETECT_TOKEN=...
    python openai_client.py "Tell me about lighthouses."

Only the address and the token differ from an application that calls another server. The check needs a token of the role
"detect", which an application does not need.
"""

import os
import sys

import httpx
import openai


def main() -> None:
    url = os.environ.get("ALIMARK_URL", "http://127.0.0.1:8765")
    question = sys.argv[1] if len(sys.argv) > 1 else "Tell me about lighthouses."
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=os.environ["ALIMARK_GENERATE_TOKEN"])
    model = next(iter(client.models.list())).id
    completion = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], max_tokens=400, seed=1
    )
    text = completion.choices[0].message.content or ""
    print(text)

    headers = {"authorization": f"Bearer {os.environ['ALIMARK_DETECT_TOKEN']}"}
    answer = httpx.post(f"{url}/v1/detect", json={"input": text}, headers=headers, timeout=60)
    answer.raise_for_status()
    for result in answer.json()["results"]:
        print(f"key {result['key_id']}: {result['verdict']}, p = {result['p_value']:.4f}")


if __name__ == "__main__":
    main()
