"""A LangChain application behind alimark's endpoint: a chain of a prompt and a chat model, whose answer is marked.

pip install langchain-openai
export ALIMARK_URL=http://127.0.0.1:8765 ALIMARK_GENERATE_TOKEN=... ALIMARK_DETECT_TOKEN=...
python langchain_client.py lighthouses
"""

import os
import sys

import httpx
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI


def main() -> None:
    url = os.environ.get("ALIMARK_URL", "http://127.0.0.1:8765")
    subject = sys.argv[1] if len(sys.argv) > 1 else "lighthouses"
    prompt = ChatPromptTemplate.from_messages([("system", "Answer in prose."), ("user", "Tell me about {subject}.")])
    chat = ChatOpenAI(
        base_url=f"{url}/v1",
        api_key=os.environ["ALIMARK_GENERATE_TOKEN"],
        model=os.environ.get("ALIMARK_MODEL", "smollm2-135m"),
        max_tokens=400,
        seed=1,
    )
    text = (prompt | chat).invoke({"subject": subject}).text
    print(text)

    headers = {"authorization": f"Bearer {os.environ['ALIMARK_DETECT_TOKEN']}"}
    answer = httpx.post(f"{url}/v1/detect", json={"input": text}, headers=headers, timeout=60)
    answer.raise_for_status()
    for result in answer.json()["results"]:
        print(f"key {result['key_id']}: {result['verdict']}, p = {result['p_value']:.4f}")


if __name__ == "__main__":
    main()
